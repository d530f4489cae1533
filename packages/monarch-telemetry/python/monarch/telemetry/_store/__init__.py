"""The rows of a collector: columns in partitions, within a budget of bytes."""
