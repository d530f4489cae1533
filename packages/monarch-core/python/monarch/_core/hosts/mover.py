"""The bulk transport of large parts between hosts: an entry point of the group `monarch.bulk`, or none.

Without one they go through the agents, as everything does. With one, a part of so many bytes stays in the sender's shared memory, and
its receiver fetches it from there, from process to process: that is native code of this package, on both sides, so only the sender needs
the other wheel. What a frame says of such a part begins with the kind of the way, so that others can be added.
"""

from __future__ import annotations

from typing import Protocol

from monarch._core.process.current import current_process

GROUP = "monarch.bulk"


class Mover(Protocol):
    """The object of an entry point of the group; loaded when a process first sends a large part to another host."""

    def least(self) -> int | None:
        """From how many bytes on a part is better fetched by its receiver; None: none is, as long as this process lives."""
        ...


def mover() -> Mover | None:
    """The one that is installed; of several, the first by name. `ImportError` if it cannot be loaded."""
    from monarch._core.config.entry_points import BrokenEntry, entry_names, load_entry

    for name in entry_names(GROUP):
        found = load_entry(GROUP, name)
        if isinstance(found, BrokenEntry):
            raise ImportError(f"what moves them cannot be loaded: {found.describe()}") from found.error
        if found is not None:
            moving: Mover = found.value
            return moving
    return None


def choose() -> None:
    """Decides for this process; what cannot be loaded is said once, and large parts are sent as ever."""
    least = None
    try:
        found = mover()
        least = found.least() if found is not None else None
    except Exception as e:
        import logging

        logging.getLogger("monarch").warning("large messages to other hosts go through their agents: %s", e)
    current_process().native.lend_from(least)
