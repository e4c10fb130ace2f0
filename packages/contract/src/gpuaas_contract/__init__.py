"""The wire contract of GPUaaS: models, statuses, error codes and the app manifest."""
