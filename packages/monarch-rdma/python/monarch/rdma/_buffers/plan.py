"""Operations that are prepared once and submitted any number of times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

from monarch.extension import bulk
from monarch.extension.bulk import Handle, Plan
from monarch.extension.events import is_recording
from monarch.rdma._buffers.arguments import check_timeout
from monarch.rdma._process.process import this_process
from monarch.rdma._transfer.failure import decoder
from monarch.rdma._transfer.operation import NAMES, WRITE
from monarch.rdma._transfer.remote_buffer import path_of, peer_of
from monarch.rdma.errors import RDMAAccessError
from monarch.rdma.paths.host_memory import HOST_MEMORY

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from monarch.actor import Future, Port
    from monarch.rdma._buffers.observation import Began
    from monarch.rdma._transfer.operation import Operation
    from monarch.rdma._transfer.remote_buffer import RemoteBuffer

# Seconds that the preparation waits for owners that do not answer. The first submit finds missing information.
OPENING = 2.0


class RDMAPlan:
    """Operations that are checked, with paths opened, and submitted any number of times; made by `RDMAAction.prepare` and `RDMABufferSet`.

    `nbytes` is how many bytes a submit moves, `ops` how many operations it has.
    """

    __slots__ = ("_first", "_op", "_peers", "__core__", "_way", "nbytes", "ops")
    nbytes: int
    ops: int

    def __init__(self, operations: Sequence[Operation]) -> None:
        self.ops = len(operations)
        self.nbytes = sum(op.nbytes for op in operations)
        buffers = {id(op.buffer): op.buffer for op in operations}.values()
        # Choosing fails if no transport reaches a buffer. Operations that a transport does not support use that of this host.
        ways = {path_of(buffer) for buffer in buffers}
        self._way = next((way for way in ways if way is not HOST_MEMORY), HOST_MEMORY)
        self._peers = {buffer.__core__.parts()[2]: peer_of(buffer) for buffer in buffers}
        self.__core__ = self._way.plan(operations)
        # The form of a submit in rows of telemetry.
        kinds = {op.kind for op in operations}
        self._op = NAMES[kinds.pop()] if len(kinds) == 1 else "batch"
        self._first = operations[0].buffer.__core__ if operations else None

    def submit(self, *, timeout: float = 60, notify: tuple[Port[Any], object] | None = None) -> Future[None]:
        """Starts all operations, which run at the same time in no order; after those of an earlier submit of this plan.

        `notify` is a port and a value, which is pickled now and sent when all bytes are in place; not after a failure. The future raises
        the `RDMAError` of the first operation that failed; others may have been done. `timeout` bounds all of it, in seconds.
        """
        seconds = check_timeout(timeout)
        began: Began | None = None
        if self.ops and is_recording():
            from monarch.rdma._buffers.observation import Began

            began = Began.now(self._op, self._way, self._first, ", ".join(self._peers.values()), self.nbytes)
        cell = self._way.submit(self.__core__, seconds, None if notify is None else bulk.notify(*notify))
        operation = f"batch of {self.ops:,} operation{'s' * (self.ops != 1)}"
        future = bulk.future_of(cell, decoder(operation, self._peers, seconds))
        return future if began is None else began.over(future, cell)

    def __repr__(self) -> str:
        return f"<RDMAPlan of {self.ops:,} operations, {self.nbytes:,} bytes>"


class Copies(NamedTuple):
    """Copies between a buffer and memory of this process: a row of nine words each, as native code has them, and their bytes."""

    buffer: RemoteBuffer
    rows: NDArray[np.int64]
    nbytes: int


class HostPlan(RDMAPlan):
    """Reads or writes between memories of hosts, given as tables: an object for each copy would take ten times as long.

    `keep` keeps the local memory.
    """

    __slots__ = ()

    def __init__(self, kind: int, copies: Sequence[Copies], keep: object) -> None:
        self.ops = sum(len(found.rows) for found in copies)
        self.nbytes = sum(found.nbytes for found in copies)
        self._way = HOST_MEMORY
        self._op = NAMES[kind]
        handles = [cast("Handle", found.buffer.__core__) for found in copies]
        self._peers = {found.buffer.__core__.parts()[2]: peer_of(found.buffer) for found in copies}
        self._first = handles[0] if handles else None
        tables = [(handle, found.rows) for handle, found in zip(handles, copies, strict=True)]
        buffers = tuple(found.buffer for found in copies)
        try:
            self.__core__ = Plan.of_tables(this_process().bulk, kind == WRITE, tables, (buffers, keep))
        except ValueError as e:  # of what another process has stated
            raise RDMAAccessError(f"malformed copies: {e}") from None


def is_for_hosts(buffers: Sequence[RemoteBuffer]) -> bool:
    """Whether a `HostPlan` can copy from and to these."""
    return all(isinstance(buffer.__core__, Handle) and path_of(buffer) is HOST_MEMORY for buffer in buffers)


def opened(plan: RDMAPlan, within: float = OPENING) -> RDMAPlan:
    """The plan, with its paths opened as far as the owners answer within these seconds."""
    plan.__core__.open(min(within, OPENING))
    return plan


def in_flight(plan: RDMAPlan) -> bool:
    """Whether a submit of the plan is not done."""
    return plan.__core__.in_flight()
