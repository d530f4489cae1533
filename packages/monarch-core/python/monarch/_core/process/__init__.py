"""A process of a job: its identity, its native node, its threads, its log."""
