"""This process as an owner of memory: its registrations, its allocations, and the buffers that other processes hold."""
