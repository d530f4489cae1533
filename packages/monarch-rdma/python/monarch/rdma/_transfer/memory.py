"""Memory of this process that a transfer reads or fills: a tensor or a memoryview, as an address and what keeps it there.

torch is never imported here: an object is a tensor when torch is loaded and the object is one.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from monarch.extension.bulk import BufferMemory
from monarch.rdma.errors import RDMAUnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterator


class Tensor(Protocol):
    """What `torch.Tensor` has that is needed here; nothing else is taken for one."""

    def data_ptr(self) -> int: ...
    def numel(self) -> int: ...
    def element_size(self) -> int: ...
    def is_contiguous(self) -> bool: ...


LocalMemory = Tensor | memoryview

# The most pieces of a tensor that is not contiguous.
MOST_RUNS = 1024


class Memory(NamedTuple):
    """Contiguous bytes of this process; they stay where they are as long as `keep` is held."""

    address: int
    nbytes: int
    readonly: bool
    keep: object
    # Its GPU, as a number of the driver; None: the host.
    device: int | None = None


class Layout(NamedTuple):
    """Memory of any shape: what it looks like, and its contiguous runs in the order of its items."""

    dtype: str
    shape: tuple[int, ...]
    runs: tuple[Memory, ...]

    @property
    def nbytes(self) -> int:
        return sum(run.nbytes for run in self.runs)


def local_memory(data: Any) -> Memory:
    """The bytes of a 1-D contiguous tensor or memoryview; `ValueError` for anything else, with what to do."""
    if type(data) is memoryview:
        memory = BufferMemory(data)
        if memory.ndim != 1 or not memory.contiguous:
            raise ValueError(
                f"expected a 1-D contiguous memoryview, got one of shape {data.shape} and strides {data.strides}: "
                "make it flat with .cast('B') where it is contiguous, else copy it"
            )
        found = Memory(memory.address, memory.nbytes, memory.readonly, memory)
    elif is_tensor(data):
        device = device_of(data)
        if data.dim() != 1 or not data.is_contiguous():
            raise ValueError(
                f"expected a 1-D contiguous tensor, got one of shape {tuple(data.shape)} and strides {tuple(data.stride())}: "
                "pass tensor.contiguous().view(-1)"
            )
        found = Memory(data.data_ptr(), data.numel() * data.element_size(), False, data, device)
    else:
        raise ValueError(f"expected a 1-D contiguous tensor or memoryview, got {_other(data)}")
    if not found.nbytes:
        raise ValueError("the memory has zero bytes: there is nothing to share or to transfer")
    return found


def layout(data: Any) -> Layout:
    """The bytes of a tensor of any shape, or of a memoryview that `local_memory` takes."""
    if not is_tensor(data):
        memory = local_memory(data)
        return Layout(data.format, data.shape, (memory,))
    device = device_of(data)
    size = data.element_size()
    if not data.numel():
        raise ValueError("the tensor has zero bytes: there is nothing to share or to transfer")
    base = data.data_ptr()
    pieces = _runs(tuple(data.shape), tuple(data.stride()))
    runs = tuple(Memory(base + start * size, count * size, False, data, device) for start, count in pieces)
    return Layout(str(data.dtype).removeprefix("torch."), tuple(data.shape), runs)


def is_tensor(data: object) -> bool:
    kind = getattr(sys.modules.get("torch"), "Tensor", None)
    return kind is not None and isinstance(data, kind)


def device_of(data: Any) -> int | None:
    """The GPU of a dense tensor; None for the host. `RDMAUnsupportedError` where it is of no use here, `ValueError` for other tensors."""
    device: int | None = None
    reason = "" if data.device.type == "cpu" else "there is no path for it in this version"
    if data.device.type == "cuda":
        from monarch.rdma.drivers.loaded import obstacle  # 7 ms, with ctypes

        reason = obstacle()
        device = None if reason else data.device.index or 0
        reason = reason and f"the path cuda-ipc is not usable: {reason}"
    if reason:
        raise RDMAUnsupportedError(
            f"memory of device '{data.device}' cannot be shared: {reason}", hint="copy it to the host first: tensor.cpu()"
        )
    if "strided" not in str(data.layout):
        raise ValueError(f"expected a dense tensor, got one with layout {data.layout}: pass tensor.to_dense()")
    if data.is_conj() or data.is_neg():
        raise ValueError("the tensor is a lazy conjugate or negative of its memory: pass tensor.resolve_conj().resolve_neg()")
    return device


def _runs(shape: tuple[int, ...], strides: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """First item and number of items of each contiguous run."""
    # The longest tail of dimensions that is contiguous.
    count, dims = 1, [(n, s) for n, s in zip(shape, strides, strict=True) if n != 1]
    while dims and dims[-1][1] == count:
        count *= dims.pop()[0]
    pieces = 1
    for n, _ in dims:
        pieces *= n
    if pieces > MOST_RUNS:
        raise ValueError(f"the tensor lies in {pieces:,} pieces, {MOST_RUNS:,} at most can be described: pass tensor.contiguous()")
    starts = [0]
    for n, stride in dims:
        starts = [start + i * stride for start in starts for i in range(n)]
    return ((start, count) for start in starts)


def _other(data: Any) -> str:
    name = type(data).__name__
    if isinstance(data, (bytes, bytearray)):
        return f"{name}: pass memoryview(data)"
    if hasattr(data, "__array_interface__"):
        return f"{name}: pass memoryview(array.reshape(-1))"
    return name
