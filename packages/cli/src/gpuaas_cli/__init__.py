"""The `gpuaas` command line: a thin edge over the SDK."""

import gc
import os

__version__ = "0.1.0"

# Looking for garbage while modules are loaded finds none, and takes a tenth of the start; `open_session` turns it
# on again. Of all the models of the contract a command needs a few. Nobody has plug-ins for them, so none are
# looked for.
gc.disable()
os.environ.setdefault("GPUAAS_LAZY_MODELS", "1")
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
