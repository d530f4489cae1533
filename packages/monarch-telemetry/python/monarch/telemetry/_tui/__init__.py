"""The terminal UI of a job (`monarch tui`): a client of its HTTP API."""
