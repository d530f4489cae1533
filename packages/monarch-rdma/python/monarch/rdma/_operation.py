"""One operation of a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from monarch.rdma._buffer import RDMABuffer
    from monarch.rdma._memory import Memory

# rust/bridge/src/bulk/plan.rs
READ, WRITE, FETCH_ADD, COMPARE_AND_SWAP = range(4)


class Operation(NamedTuple):
    """`nbytes` between local memory and a buffer at `offset`; the last two are operands of what changes a word."""

    kind: int
    buffer: RDMABuffer
    memory: Memory
    nbytes: int
    offset: int = 0
    first: int = 0
    second: int = 0
