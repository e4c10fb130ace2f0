"""A Slurm cluster by the app, by a bare shell script and by Ansible: `make bench-slurm`."""
