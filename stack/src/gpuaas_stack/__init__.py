"""All of GPUaaS on one machine: set-up, supervisor, embedded services, demo data."""
