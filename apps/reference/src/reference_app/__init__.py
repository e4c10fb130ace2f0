"""Roll call as an app on GPUaaS."""
