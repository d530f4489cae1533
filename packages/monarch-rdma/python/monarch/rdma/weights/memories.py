"""The memories that readers of published weights read: copies of the weights, or the weights themselves.

With two copies, a version is copied to the memory of the version before the last one, so a reader has the time of a step before its version
goes. Without copies the step must wait for readers that have begun; the wait has a bound, after which they must read anew.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

import numpy as np

from monarch.rdma._buffers.buffer import RDMABuffer, register
from monarch.rdma._machine.backend import check_backend
from monarch.rdma._process.allocation import allocate
from monarch.rdma._transfer.memory import Memory
from monarch.rdma._transfer.operation import WRITE
from monarch.rdma.weights.columns import copy_layout
from monarch.rdma.weights.local_tensor import LocalTensors, local_tensors
from monarch.rdma.weights.operations import COPY, kept_by, plan_of
from monarch.rdma.weights.planner import find_runs, merged
from monarch.rdma.weights.table import sums
from monarch.rdma.weights.words import CLOSING, WHOLE, WRITING, Words, state_of, version_of, word

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from monarch.rdma._buffers.plan import RDMAPlan
    from monarch.rdma.weights.table import Table

    Room = Callable[[Table, int, int], tuple[Words, list[memoryview]]]

# Seconds between two looks at the announcements of readers.
_LOOK = 0.0002


class Memories(Protocol):
    """What readers read: `slots` has the buffers of each memory, by region of the table."""

    table: Table
    words: Words
    slots: list[list[RDMABuffer]]

    def begin(self, wait: Callable[[int], None]) -> None:
        """Before the weights change. `wait` returns when the readers of a version are done, or must read anew."""
        ...

    def end(self, version: int, wait: Callable[[int], None]) -> None:
        """The weights are those of the version now."""
        ...


class Copies:
    """Two memories, of which each has the weights of one version.

    Args:
        state: the weights.
        count: the number of memories.
        columns: the number of parts of the last dimension of which each lies in one piece.
        room: makes the words and the memories of a table, of so many bytes each.
    """

    def __init__(self, state: Mapping[str, Any], count: int, columns: int, room: Room | None = None) -> None:
        self._state = state
        self._columns = columns
        self._tensors = local_tensors(state)
        found = copy_layout(self._tensors.table, columns)
        self.table = found.table
        self.words, memories = (room or _own_room)(self.table, found.size, count)
        # This process writes by handles of its own: what others get is read-only.
        self._writable = [RDMABuffer(memory) for memory in memories]
        self.slots = [[RDMABuffer(memory, readonly=True)] for memory in memories]
        self._plans: list[RDMAPlan | None] = [None] * count

    def begin(self, wait: Callable[[int], None]) -> None:
        """Readers have copies."""

    def end(self, version: int, wait: Callable[[int], None]) -> None:
        if self._tensors.moved():
            self._tensors = unchanged(self._tensors, local_tensors(self._state))
            self._plans = [None] * len(self._plans)
        # A memory whose copy has failed has nothing; else the older version goes.
        slot = min(range(len(self.slots)), key=lambda i: self.words[i] if state_of(self.words[i]) == WHOLE else 0)
        _close(self.words, slot, wait)
        self.words[slot] = word(version, WRITING)
        plan = self._plans[slot]
        if plan is None:
            plan = self._plans[slot] = self._plan(self._writable[slot])
        plan.submit(timeout=COPY).get()
        self.words[slot] = word(version, WHOLE)

    def _plan(self, buffer: RDMABuffer) -> RDMAPlan:
        live = copy_layout(self._tensors.table, self._columns)
        table = live.table
        runs = find_runs(table.shape, table.itemsize[table.tensor], (table.start, table.strides), (live.start, live.strides))
        runs = merged(runs, table.tensor)
        kept = kept_by(self._tensors, table.tensor)
        return plan_of(WRITE, [(buffer, runs)], kept)


def _own_room(_: Table, size: int, count: int) -> tuple[Words, list[memoryview]]:
    return Words(count), [allocate(size) for _ in range(count)]


class Live:
    """The weights themselves, in one region for each tensor."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        self._state = state
        self._tensors = local_tensors(state)
        table = self._tensors.table
        self.words = Words(1)
        backend = check_backend()
        regions: list[RDMABuffer] = []
        # Blocks are in the order of their tensors. Empty tensors have none, and no region.
        used, first, region = np.unique(table.tensor, return_index=True, return_inverse=True)
        steps = (table.shape - 1) * table.strides
        low = table.start + sums(np.minimum(steps, 0))
        high = table.start + sums(np.maximum(steps, 0)) + table.itemsize[table.tensor]
        if len(first):
            low, high = np.minimum.reduceat(low, first), np.maximum.reduceat(high, first)
        for i, start, end in zip(used.tolist(), low.tolist(), high.tolist(), strict=True):
            buffer = RDMABuffer.__new__(RDMABuffer)
            memory = Memory(start, end - start, True, self._tensors.data[i], self._tensors.device[i])
            register(buffer, memory, True, None, backend)
            regions.append(buffer)
        self.slots = [regions]
        self.table = table._replace(region=region, start=table.start - low[region])

    def begin(self, wait: Callable[[int], None]) -> None:
        _close(self.words, 0, wait)
        self.words[0] = word(version_of(self.words[0]), WRITING)

    def end(self, version: int, wait: Callable[[int], None]) -> None:
        if self._tensors.moved():
            raise RuntimeError("the memory of a tensor is another one than at publish: publish again, or with buffers=2")
        self.words[0] = word(version, WHOLE)


def _close(words: Words, slot: int, wait: Callable[[int], None]) -> None:
    """Lets readers of a whole version finish. After an update that has failed there is none."""
    if state_of(words[slot]) == WHOLE:
        version = version_of(words[slot])
        words[slot] = word(version, CLOSING)
        wait(version)


def unchanged(before: LocalTensors, now: LocalTensors) -> LocalTensors:
    """The tensors, of which none has another layout than before; `ValueError` names one that has."""
    columns = [(t.table.dtype, t.table.whole, t.table.tensor, t.table.low, t.table.shape, t.local) for t in (before, now)]
    heads = [(t.table.names, t.table.dtypes, t.table.dims.tolist()) for t in (before, now)]
    if heads[0] == heads[1] and all(map(np.array_equal, *columns)):
        return now
    old, new = _layouts(before), _layouts(now)
    for i, (a, b) in enumerate(zip(old, new, strict=False)):
        if a != b:
            raise ValueError(f"tensor '{before.table.names[i]}' has another layout than at publish: publish again")
    if len(old) != len(new):
        raise ValueError(f"the state dict had {len(old):,} tensors at publish, and has {len(new):,}: publish again")
    return now


def _layouts(tensors: LocalTensors) -> list[tuple[object, ...]]:
    """The name, dtype, global shape and blocks of each tensor."""
    table = tensors.table
    skip: list[int] = (table.width - table.dims).tolist()
    blocks: list[list[object]] = [[] for _ in skip]
    for block, i in enumerate(map(int, table.tensor)):
        blocks[i].append([column[block, skip[i] :].tolist() for column in (table.low, table.shape, tensors.local)])
    whole = [table.whole[i, front:].tolist() for i, front in enumerate(skip)]
    dtypes = [table.dtype_of(i) for i in range(len(skip))]
    return list(zip(table.names, dtypes, whole, blocks, strict=True))


def wait_until(done: Callable[[], bool], seconds: float) -> bool:
    """Looks again and again; false if the time is up."""
    until = time.monotonic() + seconds
    while not done():
        if time.monotonic() >= until:
            return False
        time.sleep(_LOOK)
    return True
