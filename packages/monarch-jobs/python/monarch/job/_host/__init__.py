"""The hosts' half of `exec`, `shell`, `cp` and `port-forward`: actors, and the guard program of a command."""
