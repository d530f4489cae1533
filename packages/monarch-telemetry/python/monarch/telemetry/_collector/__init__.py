"""The collector: the service of each host that reads the rings of its processes, keeps rows, and runs its part of each query.

It needs the events of core's rings, `_ingest` for rows, and `_sql` for its part of a plan. The rings outlive processes, so the rows of a
killed process are complete.
"""
