"""A batch of operations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monarch.extension.bulk import Handle
from monarch.rdma._buffers.arguments import check_word, reading, writing
from monarch.rdma._buffers.plan import RDMAPlan, in_flight, opened
from monarch.rdma._transfer.memory import local_memory
from monarch.rdma._transfer.operation import COMPARE_AND_SWAP, FETCH_ADD, READ, WRITE, Operation
from monarch.rdma._transfer.remote_buffer import peer_of
from monarch.rdma.errors import RDMAAccessError, RDMAUnsupportedError

if TYPE_CHECKING:
    from monarch.actor import Future, Port
    from monarch.rdma._buffers.buffer import RDMABuffer
    from monarch.rdma._transfer.memory import LocalMemory, Memory

_WORD = 8


class RDMAAction:
    """A batch of reads, writes and atomic operations, which can be submitted again.

    The operations run at the same time, in no order; overlapping operations are the responsibility of the caller. Adding an operation
    while a submit is in flight is a `RuntimeError`.

    ```python
    from monarch.rdma import RDMAAction, RDMABuffer

    with RDMABuffer(memoryview(bytearray(8))) as buffer:
        before = bytearray(8)
        RDMAAction().fetch_add(buffer, memoryview(before), 1).submit().get()
        assert int.from_bytes(before, "little") == 0
    ```
    """

    __slots__ = ("_operations", "_plan")

    def __init__(self) -> None:
        self._operations: list[Operation] = []
        self._plan: RDMAPlan | None = None

    def read_remote(self, dst: LocalMemory, src: RDMABuffer) -> RDMAAction:
        """Adds a read of all of `src` into a prefix of `dst`; raises like `RDMABuffer.read_into`."""
        memory, offset, nbytes = reading(src, dst, 0)
        return self._add(Operation(READ, src, memory, nbytes, offset))

    def write_remote(self, dst: RDMABuffer, src: LocalMemory) -> RDMAAction:
        """Adds a write of all of `src` to the start of `dst`; raises like `RDMABuffer.write_from`."""
        memory, offset = writing(dst, src, 0)
        return self._add(Operation(WRITE, dst, memory, memory.nbytes, offset))

    def fetch_add(self, src: RDMABuffer, dst: LocalMemory, add: int) -> RDMAAction:
        """Adds `add` to the aligned 64-bit word that `src` begins with; what it was before goes to the 8 bytes of `dst`.

        Done by the owner's processor, whatever the path. `ValueError` unless both have room for a word, `OverflowError` unless `add` fits.
        """
        memory = self._word(src, dst)
        return self._add(Operation(FETCH_ADD, src, memory, _WORD, 0, check_word("add", add)))

    def compare_and_swap(self, src: RDMABuffer, dst: LocalMemory, compare: int, swap: int) -> RDMAAction:
        """Replaces the aligned 64-bit word that `src` begins with by `swap` if it is `compare`; like `fetch_add` otherwise."""
        memory = self._word(src, dst)
        return self._add(Operation(COMPARE_AND_SWAP, src, memory, _WORD, 0, check_word("compare", compare), check_word("swap", swap)))

    def _word(self, src: RDMABuffer, dst: Any) -> Memory:
        memory = local_memory(dst)
        if memory.device is not None or not isinstance(src.__core__, Handle):
            raise RDMAUnsupportedError(f"atomic operation on {_WORD} bytes, {peer_of(src)}: memory of a GPU has none")
        if memory.readonly:
            raise ValueError("the local memory is read-only: it cannot take the previous value")
        if memory.nbytes < _WORD or src.size() < _WORD:
            raise ValueError(f"a word has {_WORD} bytes, the local memory {memory.nbytes:,} and the buffer {src.size():,}")
        if src.readonly:
            raise RDMAAccessError(f"atomic operation on {_WORD} bytes, {peer_of(src)}: the handle is read-only")
        return memory

    def _add(self, operation: Operation) -> RDMAAction:
        if self._plan is not None and in_flight(self._plan):
            raise RuntimeError("the action is in flight: wait for its submit before adding to it")
        self._plan = None
        self._operations.append(operation)
        return self

    def submit(self, *, timeout: float = 60, notify: tuple[Port[Any], object] | None = None) -> Future[None]:
        """Starts all operations, after those of an earlier submit of this action; see `RDMAPlan.submit`. An empty one does nothing."""
        if self._plan is None:
            self._plan = RDMAPlan(self._operations)
        return self._plan.submit(timeout=timeout, notify=notify)

    def prepare(self) -> RDMAPlan:
        """The operations so far, as a plan: paths are opened, within 2 s; an owner that does not answer fails at submission."""
        return opened(RDMAPlan(self._operations))

    def __repr__(self) -> str:
        return f"<RDMAAction of {len(self._operations):,} operations>"
