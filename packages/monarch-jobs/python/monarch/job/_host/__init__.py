"""What runs on the hosts of a job for `exec`, `shell`, `cp` and `port-forward`: actors, and the guard program of a command."""
