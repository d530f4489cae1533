"""Supervision: the owners of meshes, and the route of a failure to its owner.

The native runtime decides which meshes a failure concerns and which owner receives it. This package carries the decisions out on the
housekeeping thread: it runs `__supervise__` of the owner. If this method does not handle the failure, the owner fails too. The last owner
is the client, whose fault hook ends the program (`process/root_fault.py`).
"""
