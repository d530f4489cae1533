"""The content-addressed store of a machine and user."""
