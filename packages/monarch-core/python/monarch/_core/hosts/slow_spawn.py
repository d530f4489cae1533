"""Slow spawns: a mesh of procs that is not ready after ten seconds is logged once, with its missing procs and the reason of the delay.

The log line requires a live handle of the mesh, or a call to `initialized`: a mesh for which no caller waits delays nothing.
"""

from __future__ import annotations

from monarch._core.call.runs import each_of
from monarch._core.process.process import MISSING
from monarch._core.process.request_fields import MalformedRequest, number
from monarch._core.process.runtime_log import WARN, event

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from monarch._core.process.mesh_info import MeshInfo
    from monarch._core.process.process import LocalProcess

# The time in seconds before a line names the procs that are missing, and between two such lines.
AFTER = 10.0
# The number of ranks that a line names.
_SHOWN = 8


def watch(process: LocalProcess, info: MeshInfo, slot: int, bootstrap: Callable[[], Any] | None, command: str) -> None:
    """Watches a mesh whose procs answer this call id when they are ready. `command` starts them, empty if they are forked."""
    work = f"start by {command}" if command else "start"
    if bootstrap is not None:
        work = f"{work}, or run the bootstrap {getattr(bootstrap, '__qualname__', None) or type(bootstrap).__qualname__}()"
    process.starting[slot] = info, work
    process.native.request_later(AFTER, MISSING, slot.to_bytes(8, "little"))


def look(process: LocalProcess, body: bytes) -> None:
    """Logs the mesh if it is still not ready. Called on the housekeeping thread."""
    slot = number(body)
    if slot not in process.starting:  # this process sends the request to itself, once
        raise MalformedRequest
    info, work = process.starting.pop(slot)
    ranks = process.native.unanswered(slot)
    if not ranks or info.stopped is not None:
        return
    shown = ", ".join(str(rank) for rank in ranks[:_SHOWN]) + (", ..." if len(ranks) > _SHOWN else "")
    doing = _waits_for_hosts(process, info, ranks) or f"they {work}"
    text = f"{len(ranks)} of {len(info.procs)} procs of {info.name} are not ready after {AFTER:g} s: ranks {shown}; {doing}"
    event("proc.missing", WARN, mesh=info.unique_name, ranks=ranks, detail=text)


def _waits_for_hosts(process: LocalProcess, info: MeshInfo, ranks: list[int]) -> str:
    """The hosts of these ranks that have not joined, as text; empty if all have."""
    agents = list(each_of(info.agents))
    wanted = {agents[rank] for rank in ranks}
    joining = [
        address
        for attachment in process.hosts.attachments
        for rank, address in enumerate(attachment.addresses)
        if attachment.ids[rank] in wanted and attachment.cell.result(rank) is None
    ]
    if not joining:
        return ""
    more = f" and {len(joining) - 1} more" if len(joining) > 1 else ""
    return f"host {joining[0]}{more} {'have' if more else 'has'} not joined"
