"""The process groups of a job: a rank that waits in collective number 12 waits for each rank that has begun 11."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from monarch.telemetry._diagnose.group_rank import GroupRank
from monarch.telemetry._diagnose.snapshot import Actor, Index, Node, Snapshot, Wait

# A wait that is no finding unless it is this much longer than the usual time between two collectives.
_LONGER = 10.0


def by_group(ranks: Sequence[GroupRank]) -> list[list[GroupRank]]:
    """The ranks of each group that two looks have seen; a group of which two processes have the same rank is left out."""
    found: dict[tuple[str, ...], list[GroupRank]] = {}
    for one in ranks:
        if len(one.looks) > 1:
            found.setdefault(one.group, []).append(one)
    return [group for group in found.values() if len({one.rank for one in group}) == len(group)]


def is_unclear(ranks: Sequence[GroupRank]) -> bool:
    """Whether another look would show more: ranks of a group wait for others, or were seen once."""
    return any(len(one.looks) == 1 for one in ranks) or any(
        one.now.call is not None and other.now.begun < one.now.begun for group in by_group(ranks) for one in group for other in group
    )


def has_waited_long(snapshot: Snapshot, ranks: Collection[GroupRank]) -> bool:
    """Whether these ranks of a group stay longer between two collectives than usual, by far."""
    ages = {proc.uid: proc.age for proc in snapshot.procs}
    usual = max((ages[one.proc] / max(one.now.begun, 1) for one in ranks), default=None)
    return usual is not None and snapshot.group_seconds >= _LONGER * usual


def node_of(index: Index, one: GroupRank, beside: Actor | None = None) -> Node:
    """The actor that calls the collectives of a rank: that of the waiting thread, or of the same mesh as `beside`; else the process."""
    call = one.now.call
    actor = index.by_thread.get((one.proc, call.thread)) if call is not None else None
    if actor is None and beside is not None:
        actor = index.actors.get((one.proc, beside.mesh))
    return ("proc", one.proc) if actor is None else ("actor", one.proc, actor.mesh)


def collective_waits(snapshot: Snapshot) -> Iterator[tuple[GroupRank, GroupRank, Wait]]:
    """Each rank that waits in a collective, with each rank that has not begun it."""
    for group in by_group(snapshot.groups):
        for one in group:
            call = one.waits
            if call is None:
                continue
            for other in group:
                if other.now.begun < one.now.begun:
                    wait = Wait(one.proc, call.thread, endpoint=call.name, size=one.size, targets=((other.rank, other.proc),))
                    yield one, other, wait
