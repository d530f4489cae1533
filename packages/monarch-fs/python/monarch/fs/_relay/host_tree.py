"""The upstreams of each host: a tree of hosts with the client at its top, and a chain of hosts for large files.

A tree has few levels, which is what a read and thousands of small files need; a host sends each content to four children. In a chain each
host sends each content once, so links that are the limit carry it in a quarter of the time; the pieces of a large file follow each other,
and the many hosts of a chain delay only the first one.
"""

from __future__ import annotations

# The children of a host: 1,024 hosts are five levels.
FANOUT = 4
CLIENT = -1
# The preceding hosts in the chain that a host asks, in order, if nearer ones have ended.
_BEFORE = 3


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


def chain_of(rank: int, count: int, fanout: int = FANOUT) -> list[int]:
    """As `upstreams_of`, for pieces of large files: the hosts before it in the chain, then those of the tree, and `CLIENT`."""
    before = range(rank - 1, max(rank - _BEFORE, 0) - 1, -1)
    return list(dict.fromkeys([*before, *upstreams_of(rank, count, fanout)]))
