"""The abilities of this machine: its transports and devices, and the backend between hosts."""
