"""The daemon of a machine and user, which keeps mounts, and the process that serves a mount.

The daemon owns the connections with the kernel, and each mount has a server process. If a server is killed, the daemon starts another one
on the same connection. If the daemon is killed, the next daemon receives the descriptors from the servers.
"""
