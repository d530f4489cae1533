"""Measures copies between two processes of this host: real transfers, each path that is usable beside a memcpy.

One process owns memory and reads it itself (`local`); a second one reaches it by `shm` or `cma`; a third, which copies as where the kernel
forbids direct copies, by `shm-staged`.
"""

from __future__ import annotations

import ctypes
import statistics
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from monarch.actor import Actor, endpoint, this_host
from monarch.rdma._buffers.buffer import RDMABuffer
from monarch.rdma._machine.probe import probe
from monarch.rdma._process.allocation import allocate
from monarch.rdma._process.process import this_process
from monarch.rdma.errors import RDMAError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

# The process that accesses the memory, and the kind of that memory.
_OWNER, _READER, _STAGED = "owner", "reader", "staged"
_ARENA = {"shm": True}
_SIDES = {"local": _OWNER, "shm": _READER, "cma": _READER, "shm-staged": _STAGED}
MEASURED = tuple(_SIDES)
MEMCPY = "memcpy"
# For one figure: seconds, and the least and most repetitions.
_SECONDS, _LEAST, _MOST = 0.4, 3, 2000
_MARK, _OTHER = 0xA5, 0x5A


class Figure(NamedTuple):
    """The median time of one copy, in seconds, of so many."""

    path: str
    operation: str
    nbytes: int
    seconds: float
    times: int

    @property
    def bytes_per_second(self) -> float:
        return self.nbytes / self.seconds


class Side(Actor):
    """A process that owns memory, or copies from and to that of another one."""

    def __init__(self, staged: bool = False) -> None:
        self._memory: memoryview | None = None
        if staged:
            this_process().bulk.refuse_direct()

    @endpoint
    def share(self, nbytes: int, arena: bool) -> RDMABuffer:
        self._memory = _filled(allocate(nbytes) if arena else memoryview(bytearray(nbytes)), _MARK)
        return RDMABuffer(self._memory)

    @endpoint
    def forget(self) -> None:
        self._memory = None

    @endpoint
    def measure(self, path: str, buffer: RDMABuffer) -> list[Figure]:
        """Of reads and of writes; `RDMAError` where it is not this path that lies between."""
        if buffer.path != path:
            raise RDMAError(f"bench of {buffer.size():,} bytes: the path to the memory is {buffer.path}, not {path}")
        memory = _filled(memoryview(bytearray(buffer.size())), _OTHER)
        reads = _spent(lambda: buffer.read_into(memory).get())
        if (memory[0], memory[-1], memory[len(memory) // 2]) != (_MARK,) * 3:
            raise RDMAError(f"bench of {buffer.size():,} bytes, path {path}: what was read is not what the owner has written")
        writes = _spent(lambda: buffer.write_from(memory).get())
        return [Figure(path, what, buffer.size(), *spent) for what, spent in (("read", reads), ("write", writes))]

    @endpoint
    def memcpy(self, nbytes: int) -> Figure:
        """By one thread, as C does it."""
        kind = ctypes.c_char * nbytes
        target, source = (kind.from_buffer(_filled(memoryview(bytearray(nbytes)), value)) for value in (_OTHER, _MARK))
        return Figure(MEMCPY, "copy", nbytes, *_spent(lambda: ctypes.memmove(target, source, nbytes)))


def _filled(memory: memoryview, value: int) -> memoryview:
    """In pieces: there may be no room for a second one of that length."""
    piece = bytes([value]) * min(len(memory), 1 << 20)
    for at in range(0, len(memory), len(piece)):
        memory[at : at + len(piece)] = piece[: len(memory) - at]
    return memory


def _spent(body: Callable[[], object]) -> tuple[float, int]:
    """The median of the runs, and how many there were; the first is not counted."""
    body()
    seen: list[float] = []
    end = time.perf_counter() + _SECONDS
    while len(seen) < _LEAST or (len(seen) < _MOST and time.perf_counter() < end):
        start = time.perf_counter()
        body()
        seen.append(time.perf_counter() - start)
    return statistics.median(seen), len(seen)


def obstacle(path: str) -> str:
    """Why a path cannot be measured here; empty if it can."""
    row = next((row for row in probe() if row.name == path), None)
    if row is None:
        return "there is no such path here"
    if not row.usable:
        return row.reason
    if path in _SIDES:
        return ""
    return "only memory of the host is measured" if row.kind == "device" else "it does not lie between processes of one host"


def usable_paths() -> list[str]:
    return [path for path in MEASURED if not obstacle(path)]


def available_memory() -> int | None:
    """Bytes that can be had without swapping; None where the kernel does not report it."""
    try:
        with open("/proc/meminfo") as f:
            return next((int(line.split()[1]) << 10 for line in f if line.startswith("MemAvailable:")), None)
    except OSError:
        return None


def needed_memory(nbytes: int) -> int:
    """The owner's, and the other one's."""
    return 2 * nbytes


def measure(paths: Sequence[str], sizes: Sequence[int]) -> Iterator[Figure]:
    """Starts the processes, and gives each figure as it is known; all of them have ended afterwards."""
    names = {_OWNER, *(_SIDES[path] for path in paths)}
    meshes = {name: this_host().spawn_procs(name=name) for name in sorted(names)}
    try:
        sides: dict[str, Any] = {name: mesh.spawn(name, Side, name == _STAGED) for name, mesh in meshes.items()}
        for nbytes in sizes:
            yield sides[_OWNER].memcpy.call_one(nbytes).get()
            for path in paths:
                buffer = sides[_OWNER].share.call_one(nbytes, _ARENA.get(path, False)).get()
                yield from sides[_SIDES[path]].measure.call_one(path, buffer).get()
                buffer.drop().get()
                sides[_OWNER].forget.call_one().get()
    finally:
        for mesh in meshes.values():
            mesh.stop().get()
