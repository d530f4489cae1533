"""The client's side of a tree: its scan, its stat cache, its chunks."""
