"""Supervision: who owns what, and where a failure goes."""
