"""Slow spawns: a mesh of procs that is not ready after ten seconds is logged with its missing procs, and again every ten.

As long as somebody holds its handle, or a call to `initialized`; a mesh that nobody waits for is nobody's delay.
"""

from __future__ import annotations

from monarch._core.process.process import MISSING
from monarch._core.process.runtime_log import WARN, event

TYPE_CHECKING = False
if TYPE_CHECKING:
    from monarch._core.call.mesh_info import MeshInfo
    from monarch._core.process.process import LocalProcess

# Seconds (contract 11.2, host_spawn_ready_timeout).
EVERY = 10.0
# Ranks that a line names.
_SHOWN = 8


def watch(process: LocalProcess, info: MeshInfo, slot: int) -> None:
    """Looks after the mesh whose procs answer this slot when they are ready."""
    process.starting[slot] = info, 1
    process.native.remind(EVERY, MISSING, slot.to_bytes(8, "little"))


def look(process: LocalProcess, body: bytes) -> None:
    """The time is over. On the housekeeping thread."""
    slot = int.from_bytes(body, "little")
    info, times = process.starting.pop(slot)
    ranks = process.native.unanswered(slot)
    if not ranks or info.stopped is not None:
        return
    shown = ", ".join(str(rank) for rank in ranks[:_SHOWN]) + (", ..." if len(ranks) > _SHOWN else "")
    text = f"{len(ranks)} of {len(info.procs)} procs of {info.name} are not ready after {times * EVERY:g} s: ranks {shown}"
    event("proc.missing", WARN, mesh=info.unique_name, ranks=ranks, detail=text)
    process.starting[slot] = info, times + 1
    process.native.remind(EVERY, MISSING, body)
