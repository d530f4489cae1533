"""Pushes: copies of a client directory on the disks of all hosts, and the relocation of environments.

Each file is replaced in one step. A push record on the host has the attributes of written files, so equal files are not sent again.
"""
