"""The client's half of `exec`, `shell`, `cp` and `port-forward`; the other half is `monarch.job._host`."""
