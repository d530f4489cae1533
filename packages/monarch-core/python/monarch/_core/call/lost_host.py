"""A lost host in the client's records: its address, and the reason for which it did not join or was lost."""

from __future__ import annotations

from monarch._core.call.runs import each_of
from monarch._core.process.current import current_process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from monarch._core.errors.errors import MonarchError
    from monarch._core.errors.failure import ExitReason, MeshFailure
    from monarch._core.process.mesh_info import MeshInfo


# The signals that the scheduler of a job sends to all processes of a host, in any order: procs may end before their agent.
_OF_SCHEDULERS = (15, 9)


def may_be_lost(reason: ExitReason) -> bool:
    """Whether the end of the host can be the cause of a proc's end."""
    return reason.kind == "host_lost" or (reason.kind == "signal" and reason.signal in _OF_SCHEDULERS)


def why_lost(info: MeshInfo, failure: MeshFailure) -> MonarchError | None:
    """The cause of the loss of the host of a failed rank, such as the end of the job that started it; known in the client only."""
    if not may_be_lost(failure.reason) or not failure.crashed_ranks:
        return None
    attachment, rank = _attached(info, failure.crashed_ranks[0])
    if attachment is None:
        return None
    error = attachment.no_address.get(rank) if failure.reason.kind == "host_lost" else None
    if error is None:
        return None if attachment.explain is None else attachment.explain()
    from copy import copy

    return copy(error)  # each raise needs a traceback of its own


def place_of(info: MeshInfo, rank: int) -> str | None:
    """The address at which the host of a rank was to join; None where it is unknown."""
    attachment, place = _attached(info, rank)
    return None if attachment is None else attachment.addresses[place]


def _attached(info: MeshInfo, rank: int) -> tuple[Any, int]:
    """The attachment that contains the host of a rank, and the index of the host in it."""
    agents = each_of(info.agents)
    agent = agents[rank] if rank < len(agents) else 0
    return next(((a, a.ids.index(agent)) for a in current_process().hosts.attachments if agent in a.ids), (None, 0))
