"""Rows of tables from events of processes: columns in, columns out; only rare events are handled one by one."""
