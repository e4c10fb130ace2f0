"""The GPUaaS node agent: realises allocations as machines on one host."""
