"""The routes of the API, one module per noun. `__init__.pyi` says which module has which class.

A class is imported when it is first used: a command of the CLI needs one or two of them, and the wire models of all of
them would be most of its start-up time.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
