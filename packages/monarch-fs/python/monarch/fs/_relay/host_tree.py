"""The upstreams of each host: a tree of hosts with the client at its top."""

from __future__ import annotations

# Children of a host: 1,024 hosts are five levels.
FANOUT = 4
CLIENT = -1


def upstreams_of(rank: int, count: int, fanout: int = FANOUT) -> list[int]:
    """The ranks of the hosts that a host asks, in order, and `CLIENT` as the last: its parent, its elder siblings, the other ancestors.

    All have a lower rank, so no two hosts ever wait for each other. The client has one child, host 0. When host 0 is dead, its eldest child
    takes its place, since the others ask this sibling before the client: that is the second time the client sends a chunk.
    `ValueError` for a rank that is not one of `count`, and a fanout below 1.
    """
    if fanout < 1 or not 0 <= rank < count:
        raise ValueError(f"rank {rank} of {count} hosts with a fanout of {fanout}")
    if rank == 0:
        return [CLIENT]
    parent = (rank - 1) // fanout
    found = [parent, *range(parent * fanout + 1, rank)]
    while parent:
        parent = (parent - 1) // fanout
        found.append(parent)
    return [*found, CLIENT]
