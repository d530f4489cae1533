"""A real sshd on loopback, one for each host that a test wants: `hosts.py` has them, `__main__.py` the command."""
