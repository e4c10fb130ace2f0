"""The GPUaaS control plane: public API over PostgreSQL and OpenBao."""
