"""Queries to the collectors: the engine sends a query to the hosts, and makes one answer with its coverage of their parts.

`Engine.ask` has the statement planned by a worker, a process that the engine ends at the limits of the query (`_sql/planner.py`,
`_sql/worker.py`). The collector of each host runs its part over its own tables, and the entry node merges the parts. An answer always
names the hosts that did not answer.
"""
