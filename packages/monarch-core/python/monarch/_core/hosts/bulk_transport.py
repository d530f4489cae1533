"""The bulk transport of large parts between hosts: an entry point of the group `monarch.bulk`, or none.

Without one, large parts go through the agents, as all frames do. With one, a part of at least `least()` bytes stays in the sender's shared
memory, and its receiver pulls it from there, from process to process. Native code of this package does that on both sides, so only the
sender needs the other wheel. The description of such a part in a frame starts with a transport tag, so that other transports can be added.
"""

from __future__ import annotations

from typing import Protocol

from monarch._core.process.current import current_process

GROUP = "monarch.bulk"


class BulkTransport(Protocol):
    """A bulk transport: the object of an entry point of the group, loaded when a process first sends a large part to another host."""

    def least(self) -> int | None:
        """The size in bytes from which the receiver pulls a part; None: no part is pulled, as long as this process lives."""
        ...


def installed_transport() -> BulkTransport | None:
    """The installed bulk transport; of several, the first by name. `ImportError` if it cannot be loaded."""
    from monarch._core.config.entry_points import BrokenEntry, entry_names, load_entry

    for name in entry_names(GROUP):
        found = load_entry(GROUP, name)
        if isinstance(found, BrokenEntry):
            raise ImportError(f"what moves them cannot be loaded: {found.describe()}") from found.error
        if found is not None:
            transport: BulkTransport = found.value
            return transport
    return None


def choose() -> None:
    """Chooses the transport of this process. A transport that cannot be loaded is logged once, and large parts go through the agents."""
    least = None
    try:
        found = installed_transport()
        least = found.least() if found is not None else None
    except Exception as e:
        import logging

        logging.getLogger("monarch").warning("large messages to other hosts go through their agents: %s", e)
    current_process().native.set_offer_size(least)
