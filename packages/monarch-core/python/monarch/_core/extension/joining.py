"""A deadline for hosts that join."""

from __future__ import annotations

from contextlib import contextmanager

from monarch._core.hosts.attachment import JOIN_DEADLINE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator


@contextmanager
def joined_by(deadline: float | None) -> Generator[None]:
    """Hosts for which `attach_to_workers` is called in this block have to join by `deadline`, a time of `time.monotonic()`, or earlier.

    The usual limit applies too: `mesh_attach_config_timeout` from the moment at which their address is known. None sets no deadline.
    """
    token = JOIN_DEADLINE.set(deadline)
    try:
        yield
    finally:
        JOIN_DEADLINE.reset(token)
