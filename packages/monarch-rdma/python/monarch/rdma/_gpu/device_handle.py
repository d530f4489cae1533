"""The path `cuda-ipc`: memory of GPUs of this host, and of this process; and of other hosts, whose owners copy (`+staged`).

A block of shared memory that describes that memory is registered, as native code could not access the memory itself. A process with a
handle maps the block, without asking the owner's Python, and opens the allocation by its content; while it is mapped the owner keeps
the tensor. The block is read before and after each copy, as any buffer of this host: that fails if it has ended. It is all that the owner
can do: what was opened once cannot be closed from outside, so read-only handles bind those who use this package.
"""

from __future__ import annotations

import weakref
from struct import Struct
from threading import RLock
from typing import TYPE_CHECKING, NamedTuple
from warnings import warn

from monarch.extension.bulk import BufferMemory, BulkFailed
from monarch.rdma._gpu.worker import OWN
from monarch.rdma._process.allocation import allocate
from monarch.rdma._process.process import this_process
from monarch.rdma._transfer.failure import CUDA_IPC, LOCAL, UNSUPPORTED, pack, pack_named
from monarch.rdma.drivers.driver import HANDLE_BYTES, UUID_BYTES
from monarch.rdma.drivers.library import DriverError
from monarch.rdma.drivers.loaded import driver
from monarch.rdma.errors import RDMAUnsupportedError

if TYPE_CHECKING:
    from monarch.extension.bulk import Bulk, Handle, PendingCall, SharedMemory
    from monarch.rdma._transfer.memory import Memory
    from monarch.rdma.drivers.driver import Device, Driver, Pointer

# The handle for opening the allocation, its device, the offset of the memory in it, the address at the owner, and its bytes.
_BLOCK = Struct(f"<8s{HANDLE_BYTES}s{UUID_BYTES}sQQQ16x")
_MAGIC = b"monarch1"
# Replaces the handle of an allocation that is not exported: the owner copies.
_NOT_EXPORTED = bytes(HANDLE_BYTES)
# The suffix of a transport through memory of the owner's host.
_STAGED = "+staged"
_warned = False


def register(native: Bulk, memory: Memory, readonly: bool, lease: float | None) -> DeviceHandle:
    """Shares memory of a GPU; `RDMAUnsupportedError` for what the driver does not know."""
    assert memory.device is not None
    try:
        loaded = driver()
        with loaded.on(memory.device):
            base, exported = _export(loaded, memory)
            # Earlier queued work may still have to write the memory.
            loaded.synchronize()
        uuid = loaded.uuid(memory.device)
    except DriverError as e:
        raise RDMAUnsupportedError(f"share of {memory.nbytes:,} bytes of GPU {memory.device}: {e}") from None
    view = allocate(_BLOCK.size)
    view[:] = _BLOCK.pack(_MAGIC, exported, uuid, memory.address - base, memory.address, memory.nbytes)
    block = BufferMemory(view)
    handle = native.register(block.address, _BLOCK.size, readonly, lease, (_Described(block, memory), memory.keep))
    return DeviceHandle(handle, memory.nbytes, 0, readonly)


class _Described:
    """As long as it lives, this process goes by what it knows of the memory itself: who may write the buffer may write the block."""

    def __init__(self, block: BufferMemory, memory: Memory) -> None:
        self._block = block
        _described[block.address] = memory._replace(keep=None)

    def __del__(self) -> None:
        _described.pop(self._block.address, None)


_described: dict[int, Memory] = {}


def described(address: int) -> Memory | None:
    """The memory of a GPU that a block of this process at that address describes."""
    return _described.get(address)


def _export(loaded: Driver, memory: Memory) -> tuple[Pointer, bytes]:
    """Where the allocation begins, and what others open it with, if they can."""
    base, exported, reason = memory.address, _NOT_EXPORTED, ""
    try:
        base, length = loaded.allocation(memory.address)
        if memory.address + memory.nbytes > base + length:
            raise DriverError("it lies in several allocations")
        exported = loaded.export(base)
    except DriverError as e:
        reason = str(e)
    global _warned
    if reason and not _warned:
        _warned = True
        warn(
            f"the driver does not export this memory, so this process copies it for others: {reason}. Expandable segments and pools of an "
            "allocator are not exported; for torch's, PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False",
            stacklevel=5,
        )
    return base, exported


def received(native: Bulk, id: bytes, epoch: int, owner: int, nbytes: int, offset: int, readonly: bool, is_far: bool) -> DeviceHandle:
    return DeviceHandle(native.handle(id, epoch, owner, _BLOCK.size, readonly, is_far), nbytes, offset, readonly, is_far)


class Place(NamedTuple):
    """Memory of a GPU as this process sees it; at 0 if only its owner does."""

    pointer: Pointer
    device: Device


class DeviceHandle:
    """Stands where a native handle does; `block` is one, of what describes the memory."""

    __slots__ = ("__weakref__", "_lock", "_place", "_view", "block", "is_far", "nbytes", "offset", "readonly")

    def __init__(self, block: Handle, nbytes: int, offset: int, readonly: bool, is_far: bool = False) -> None:
        self.block = block
        self.nbytes = nbytes
        self.offset = offset
        self.readonly = readonly
        # Whether its owner is on another host.
        self.is_far = is_far
        self._lock = RLock()
        self._place: Place | None = None
        self._view: memoryview | None = None

    def parts(self) -> tuple[bytes, int, int, int, bool]:
        id, epoch, owner, _, _ = self.block.parts()
        return id, epoch, owner, self.nbytes, self.readonly

    @property
    def owner(self) -> int:
        return self.block.parts()[2]

    @property
    def is_own(self) -> bool:
        return self.owner == this_process().member.proc

    @property
    def is_open(self) -> bool:
        return self._place is not None

    def give(self) -> None:
        self.block.give()

    def path(self, timeout: float) -> str:
        try:
            place = self.open(timeout)
        except DriverError as e:
            raise BulkFailed(self.failure(UNSUPPORTED, str(e))) from None
        if self.is_far:
            return f"{self.block.path(timeout)}{_STAGED}"
        return "local" if self.is_own else "cuda-ipc" if place.pointer else f"cuda-ipc{_STAGED}"

    def failure(self, kind: int, detail: str, done: int = 0) -> bytes:
        if self.is_far:
            # Known information is available without waiting.
            path = self.block.path(0.0) if self.is_open else "none"
            return pack_named(kind, f"{path}{_STAGED}", self.is_open, done, self.nbytes, self.owner, detail)
        path = LOCAL if self.is_own else CUDA_IPC
        return pack(kind, path, self._place is not None, done, self.nbytes, self.owner, detail)

    def restrict(self, offset: int, nbytes: int, readonly: bool, timeout: float) -> DeviceHandle:
        """The block of a part is all of the block."""
        return DeviceHandle(self.block.restrict(0, _BLOCK.size, readonly, timeout), nbytes, self.offset + offset, readonly, self.is_far)

    def map(self, timeout: float) -> SharedMemory:
        raise BulkFailed(self.failure(UNSUPPORTED, "memory of a GPU cannot be mapped"))

    def drop(self, timeout: float) -> PendingCall | None:
        """The memory is let go of with the last copy and the last handle that has used it."""
        self._view = None
        return self.block.drop(timeout)

    def open(self, timeout: float) -> Place:
        """Where the memory is; `BulkFailed` if it has ended, `DriverError` where it cannot be reached."""
        with self._lock:
            if self._place is None and self.is_far:
                self.check(timeout)
                self._place = Place(0, 0)
            if self._place is None:
                view = memoryview(self.block.map(timeout))  # pyright: ignore[reportArgumentType]
                self._place = self._find_own(BufferMemory(view).address) if self.is_own else self._find(_BLOCK.unpack(view))
                self._view = view
            return self._place

    def _find_own(self, address: int) -> Place:
        memory = described(address)
        if memory is None or memory.device is None:
            raise DriverError("what is registered there describes no memory of a GPU")
        if self.offset + self.nbytes > memory.nbytes:
            raise DriverError(f"bytes to {self.offset + self.nbytes:,} of a tensor of {memory.nbytes:,}")
        return Place(memory.address + self.offset, memory.device)

    def _find(self, described: tuple[bytes, bytes, bytes, int, int, int]) -> Place:
        magic, exported, uuid, start, _, nbytes = described
        if magic != _MAGIC:
            raise DriverError("the owner describes its memory in another way: it has another version")
        if self.offset + self.nbytes > nbytes:
            raise DriverError(f"bytes to {self.offset + self.nbytes:,} of a tensor of {nbytes:,}")
        device = driver().find(uuid)
        if exported == _NOT_EXPORTED:
            return Place(0, 0)
        if device is None:
            raise DriverError(f"the GPU {uuid.hex()} is not visible to this process")
        return Place(_imports.use(self, device, exported) + start + self.offset, device)

    def check(self, timeout: float) -> None:
        """`BulkFailed` if the buffer has ended."""
        seen = bytearray(_BLOCK.size)
        memory = BufferMemory(seen)
        wait(self.block.transfer(False, memory.address, _BLOCK.size, memory, 0, timeout, 1 << 20))


def wait(cell: PendingCall | None) -> None:
    """Until native code has done it; `BulkFailed` with its record."""
    if cell is None:
        return
    cell.wait(0, None)
    error = cell.error()
    if error is not None:
        raise BulkFailed(error.raw())


class _Import:
    def __init__(self, base: Pointer) -> None:
        self.base = base
        self.uses = 0


class _Imports:
    """Allocations of other processes: each is opened once, and closed with the last handle that used it."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._open: dict[tuple[int, bytes, Device], _Import] = {}

    def use(self, handle: DeviceHandle, device: Device, exported: bytes) -> Pointer:
        """Where the allocation begins here, for as long as the handle lives."""
        loaded, key = driver(), (handle.owner, exported, device)
        OWN.start()
        with self._lock, loaded.on(device):
            found = self._open.get(key)
            if found is None:
                found = self._open[key] = _Import(loaded.open(exported))
            found.uses += 1
            # The garbage collector may run at any time, also while this lock is held: another thread closes.
            weakref.finalize(handle, OWN.later, lambda: self._let_go(key)).atexit = False
            return found.base

    def _let_go(self, key: tuple[int, bytes, Device]) -> None:
        with self._lock:
            found = self._open[key]
            found.uses -= 1
            if not found.uses:
                del self._open[key]
                with driver().on(key[2]):
                    driver().close(found.base)

    def count(self) -> int:
        return len(self._open)


_imports = _Imports()


def imports() -> int:
    """Allocations of other processes that are open."""
    return _imports.count()
