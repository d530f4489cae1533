"""This process as an owner of memory: what it has open, allocated and given away."""
