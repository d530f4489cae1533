"""Real files on every host."""
