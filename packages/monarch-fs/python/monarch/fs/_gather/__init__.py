"""Directories of the hosts, live on the client."""
