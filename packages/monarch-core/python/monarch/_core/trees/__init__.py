"""Directories of this machine, compared with an earlier state."""
