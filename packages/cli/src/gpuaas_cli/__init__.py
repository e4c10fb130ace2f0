"""The `gpuaas` command line: a thin edge over the SDK."""

__version__ = "0.1.0"
