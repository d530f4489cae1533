"""One handle for a mapping of tensors, e.g. a state dict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from monarch.actor import returns_future
from monarch.extension import bulk
from monarch.rdma._buffers.buffer import RDMABuffer, register
from monarch.rdma._buffers.plan import RDMAPlan, opened
from monarch.rdma._machine.backend import check_backend
from monarch.rdma._transfer.memory import Memory, layout
from monarch.rdma._transfer.operation import READ, WRITE, Operation
from monarch.rdma.errors import RDMAAccessError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from monarch.actor import Future
    from monarch.rdma._transfer.memory import LocalMemory


class _Entry(NamedTuple):
    """A tensor: its runs are buffers, in the order of its items."""

    dtype: str
    shape: tuple[int, ...]
    buffers: tuple[RDMABuffer, ...]


class RDMABufferSet:
    """Handles of all tensors of a mapping, of any shape; a tensor that is not contiguous may lie in 1,024 pieces.

    Reads and writes take mappings with some or all of its keys, and tensors of the same dtype and shape; they are one batch. `ValueError`
    for what cannot be shared, `KeyError` for keys that the set does not have.
    """

    __slots__ = ("_entries", "_readonly")

    def __init__(self, tensors: Mapping[str, LocalMemory], *, readonly: bool = False) -> None:
        backend = check_backend()
        # All items are checked before any is shared.
        found = {key: _layout(key, data) for key, data in tensors.items()}
        self._readonly = bool(readonly) or any(run.readonly for made in found.values() for run in made.runs)
        self._entries: dict[str, _Entry] = {}
        for key, made in found.items():
            buffers: list[RDMABuffer] = []
            for run in made.runs:
                buffer = RDMABuffer.__new__(RDMABuffer)
                register(buffer, run, self._readonly or run.readonly, None, backend)
                buffers.append(buffer)
            self._entries[key] = _Entry(made.dtype, made.shape, tuple(buffers))

    def keys(self) -> tuple[str, ...]:
        return tuple(self._entries)

    def spec(self, key: str) -> tuple[str, tuple[int, ...]]:
        """Dtype, by its name in torch or the format of a memoryview, and shape."""
        entry = self._entries[key]
        return entry.dtype, entry.shape

    def read_into(self, tensors: Mapping[str, LocalMemory], *, timeout: float = 60) -> Future[None]:
        """Copies the tensors of these keys into those of the mapping."""
        return self._plan(READ, tensors).submit(timeout=timeout)

    def write_from(self, tensors: Mapping[str, LocalMemory], *, timeout: float = 60) -> Future[None]:
        """Copies the tensors of the mapping into those of these keys; `RDMAAccessError` if the set is read-only."""
        return self._plan(WRITE, tensors).submit(timeout=timeout)

    def plan_read(self, tensors: Mapping[str, LocalMemory]) -> RDMAPlan:
        """`read_into`, prepared: one that is submitted for every step."""
        return opened(self._plan(READ, tensors))

    def _plan(self, kind: int, tensors: Mapping[str, LocalMemory]) -> RDMAPlan:
        if kind == WRITE and self._readonly:
            raise RDMAAccessError(f"write to {len(tensors):,} tensors: the set is read-only")
        operations: list[Operation] = []
        for key, data in tensors.items():
            entry = self._entries.get(key)
            if entry is None:
                raise KeyError(key)
            made = _layout(key, data)
            if (made.dtype, made.shape) != (entry.dtype, entry.shape):
                raise ValueError(f"'{key}' is {made.dtype} of shape {made.shape} here, and {entry.dtype} of shape {entry.shape} in the set")
            if kind == READ and any(run.readonly for run in made.runs):
                raise ValueError(f"'{key}': the local memory is read-only: it cannot be read into")
            if sum(buffer.size() for buffer in entry.buffers) != made.nbytes:
                raise _malformed(f"the buffers of '{key}' have other bytes than its shape")
            operations += _cut(kind, entry.buffers, made.runs)
        return RDMAPlan(operations)

    def drop(self) -> Future[None]:
        """Ends all buffers of the set, for all processes; see `RDMABuffer.drop`."""
        futures = [buffer.drop() for entry in self._entries.values() for buffer in entry.buffers]
        return _all(futures) if futures else bulk.done()

    def __len__(self) -> int:
        return len(self._entries)

    def __reduce__(self) -> tuple[Any, ...]:
        rows = [(key, e.dtype, e.shape, e.buffers) for key, e in self._entries.items()]
        return (RDMABufferSet._received, (rows, self._readonly))

    @staticmethod
    def _received(rows: object, readonly: object) -> RDMABufferSet:
        found = RDMABufferSet.__new__(RDMABufferSet)
        found._entries = dict(_entry(row) for row in _items(rows, list))
        found._readonly = bool(readonly)
        return found

    def __repr__(self) -> str:
        return f"<RDMABufferSet of {len(self._entries):,} tensors>"


@returns_future
async def _all(futures: list[Future[None]]) -> None:
    """What they report has begun already."""
    for future in futures:
        await future


def _entry(row: object) -> tuple[str, _Entry]:
    """The key and the tensor of a pickled row; `RDMAAccessError` where it is malformed."""
    fields = _items(row, tuple)
    if len(fields) != 4:
        raise _malformed(f"{len(fields)} fields of 4")
    key, dtype, shape, buffers = fields
    if not isinstance(key, str) or not isinstance(dtype, str):
        raise _malformed("a key or a dtype that is no text")
    if not all(isinstance(n, int) and n >= 0 for n in _items(shape, tuple)):
        raise _malformed(f"the shape of '{key}'")
    if not buffers or not all(isinstance(buffer, RDMABuffer) for buffer in _items(buffers, tuple)):
        raise _malformed(f"the buffers of '{key}'")
    return key, _Entry(dtype, shape, buffers)


def _items(found: object, kind: type[Any]) -> Any:
    if not isinstance(found, kind):
        raise _malformed(f"{type(found).__name__}, not {kind.__name__}")
    return found


def _malformed(why: str) -> RDMAAccessError:
    return RDMAAccessError(
        f"malformed handle of an RDMA buffer set: {why}",
        hint="handles are made by RDMABufferSet, and travel as arguments, results and state",
    )


def _layout(key: str, data: Any) -> Any:
    try:
        return layout(data)
    except ValueError as e:
        raise ValueError(f"'{key}': {e}") from None


def _cut(kind: int, buffers: tuple[RDMABuffer, ...], runs: tuple[Memory, ...]) -> Iterator[Operation]:
    """Both sides hold the same bytes in the same order, cut at different places."""
    remote, local = iter(buffers), iter(runs)
    there, here = next(remote), next(local)
    offset = start = 0
    while True:
        nbytes = min(there.size() - offset, here.nbytes - start)
        yield Operation(kind, there, Memory(here.address + start, nbytes, here.readonly, here.keep, here.device), nbytes, offset)
        offset, start = offset + nbytes, start + nbytes
        if offset == there.size():
            following = next(remote, None)
            if following is None:
                return
            there, offset = following, 0
        if start == here.nbytes:
            here, start = next(local), 0
