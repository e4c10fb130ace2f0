"""The gpuaas command line."""
