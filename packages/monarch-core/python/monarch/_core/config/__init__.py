"""Settings of a process: their declarations, values and sources."""
