"""A real Kubernetes cluster on this machine.

`cluster.py` defines it, `build.py` builds its programs from Go modules, `__main__.py` is the command.
"""
