"""Mounts on a mesh of hosts: the service of each host, and the handle of the client."""
