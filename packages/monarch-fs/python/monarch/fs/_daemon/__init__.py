"""The daemon of a machine and user, which keeps mounts, and the process that serves a mount."""
