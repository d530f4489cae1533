"""Stacks of processes: read by the process itself or from outside by py-spy, merged over many procs, drawn as flame graphs."""
