"""A real SLURM cluster on this machine: `cluster.py` defines it, `configuration.py` its slurm.conf, `__main__.py` the command."""
