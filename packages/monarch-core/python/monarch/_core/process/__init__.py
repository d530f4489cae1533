"""A process of a job: its identity, its native node, its threads, its runtime log, and the fault hook.

Every higher layer uses this one. It names what it needs from them in `above.py`. A process has one node from its first use of the
runtime to its exit; a forked child has none.
"""
