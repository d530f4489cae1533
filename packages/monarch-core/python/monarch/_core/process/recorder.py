"""The flight recorder: this process's events in shared memory, which its agent keeps when the process has ended (docs/events.md)."""

from __future__ import annotations

from monarch._core._native.events import proc_start
from monarch._core.config import config

TYPE_CHECKING = False
if TYPE_CHECKING:
    from monarch._core.process.process import LocalProcess

# The largest count that native code takes; no ring can have as many events.
_MOST = 2**32 - 1


def ring_events() -> int:
    """The number of events in a ring, by the settings of this process."""
    return min(int(config.value("flight_recorder_events")), _MOST)


def wanted() -> int:
    """The number of events that this process records without an observer; 0 without a flight recorder."""
    return ring_events() if config.value("flight_recorder") else 0


def start(process: LocalProcess) -> None:
    """Starts recording, if the settings ask for it; a proc records from its start. Later observers get its introduction."""
    if events := wanted():
        process.native.record(events)
    info = process.place.info
    proc_start(process.uid if info is None else info.uid, "client" if info is None else info.unique_name, process.place.rank)
