"""The SDK of GPUaaS: async client, machine access and the reconcile runtime for app controllers.

The public names are listed in `__init__.pyi`. They are imported when they are first used, so that a program that needs
only the client does not pay for SSH.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
