"""A package of somebody else."""
