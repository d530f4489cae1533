"""Hosts: attaching workers, spawning procs, and the meshes of both."""
