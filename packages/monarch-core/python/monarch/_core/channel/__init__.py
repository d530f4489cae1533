"""Messages between a process and a helper process on the same machine."""
