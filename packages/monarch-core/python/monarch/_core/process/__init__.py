"""A process of a job: its identity, its native node, its threads, its runtime log, and the fault hook.

Every higher layer uses this one. `provided.py` names the functions that it needs from them, `parts.py` has the interfaces of the parts of
a process that they implement. A process has one node from its first use of the runtime to its exit; a forked child has none.
"""
