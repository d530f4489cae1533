"""A real sshd on loopback, one for each host of a test: `hosts.py` defines them, `__main__.py` the command."""
