"""Slurm as an app on GPUaaS: an independently deployed controller."""
