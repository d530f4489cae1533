"""Transports of bytes from one memory to another: one file a family of paths, chosen once per pair of processes (`choice`)."""
