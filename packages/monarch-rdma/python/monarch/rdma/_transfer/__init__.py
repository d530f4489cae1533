"""The terms of a transfer: local memory, operations, and failures."""
