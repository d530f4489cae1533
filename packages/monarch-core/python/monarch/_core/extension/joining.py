"""A limit of their own for hosts that are to join."""

from __future__ import annotations

from contextlib import contextmanager

from monarch._core.hosts.attachment import JOIN_DEADLINE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator


@contextmanager
def joined_by(deadline: float | None) -> Generator[None]:
    """Hosts that `attach_to_workers` is called for in this block have to join by then, a time of `time.monotonic()`, or earlier.

    That is, within `mesh_attach_config_timeout` of when their address is known. None leaves it at that.
    """
    token = JOIN_DEADLINE.set(deadline)
    try:
        yield
    finally:
        JOIN_DEADLINE.reset(token)
