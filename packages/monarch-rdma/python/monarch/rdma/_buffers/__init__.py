"""The handles that a program holds: buffers, sets of buffers, and batches of operations on them."""
