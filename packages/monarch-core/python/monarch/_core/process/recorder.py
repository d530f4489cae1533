"""The flight recorder: this process's events in shared memory, which its agent keeps when the process has ended (docs/events.md)."""

from __future__ import annotations

from monarch._core._native.events import proc_start
from monarch._core.config import config

TYPE_CHECKING = False
if TYPE_CHECKING:
    from monarch._core.process.process import LocalProcess

# A count that the native side takes; what a ring can have is less.
_MOST = 2**32 - 1


def ring_events() -> int:
    """How many events a ring is to have room for, by the settings of this process."""
    return min(int(config.value("flight_recorder_events")), _MOST)


def start(process: LocalProcess) -> None:
    """Records from now on, if the settings ask for it."""
    if config.value("flight_recorder"):
        process.native.record(ring_events())
        info = process.proc_info
        proc_start("client" if info is None else info.unique_name, process.proc_rank)
