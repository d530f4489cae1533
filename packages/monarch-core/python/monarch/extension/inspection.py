"""The state of this host's processes, as their agent knows it."""

from monarch._core.extension.host_state import host_stacks, host_state

__all__ = ["host_stacks", "host_state"]
