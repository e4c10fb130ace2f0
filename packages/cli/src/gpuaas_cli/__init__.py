"""The `gpuaas` command line: a thin edge over the SDK."""

import gc
import os

__version__ = "0.1.0"

# Imports make no garbage, and collecting it takes a tenth of the start; `open_session` turns it on again. A command
# needs only a few of the contract's models, and they have no plug-ins to search for.
gc.disable()
os.environ.setdefault("GPUAAS_LAZY_MODELS", "1")
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
