"""The async client, reconcile runtime and machine access of GPUaaS."""
