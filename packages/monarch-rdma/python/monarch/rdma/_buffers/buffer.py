"""A handle of memory of any process."""

from __future__ import annotations

from operator import attrgetter
from struct import Struct
from typing import TYPE_CHECKING, Any

from monarch import extension
from monarch.extension import bulk
from monarch.extension.bulk import BulkFailed, Handle
from monarch.extension.events import is_recording
from monarch.rdma._buffers.arguments import check_lease, check_offset, check_timeout, reading, writing
from monarch.rdma._buffers.requests import serve_requests
from monarch.rdma._machine.backend import check_backend
from monarch.rdma._process.capability import CapabilityRecord
from monarch.rdma._process.process import this_process
from monarch.rdma._transfer.failure import as_error, decoder
from monarch.rdma._transfer.memory import Memory, local_memory
from monarch.rdma.errors import RDMAAccessError
from monarch.rdma.paths.choice import choose

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from monarch.actor import Future
    from monarch.rdma._buffers.observation import Began
    from monarch.rdma._gpu.device_handle import DeviceHandle
    from monarch.rdma._transfer.memory import LocalMemory
    from monarch.rdma.paths.path import Path

# Id, epoch, owner, bytes, read-only, job, pid, capability record, backend, agent, further jobs; then a `_PLACE` for each of those, and the
# name of the host.
_PICKLED = Struct("<16sQQQ?Qi8sBQB")
# Another job whose processes may use the handle, and the id of the agent there: the owner is a service.
_PLACE = Struct("<QQ")
_MOST_PLACES = 255
_BACKENDS = ("none", "tcp", "ibverbs")
# Added to the backend of a buffer on a GPU. The offset in its registration follows then, before the host.
_ON_DEVICE = 0x80
_DEVICE_OFFSET = Struct("<Q")
# More bytes than any process has.
_MOST = 1 << 56
# Seconds that `path`, `restrict` and `map` wait for an owner that does not answer.
OPENING = 2.0


class RDMABuffer:
    """A handle of memory: any process of the job that has the handle reads and writes that memory.

    The memory stays alive until the buffer ends: by `drop`, at the end of a `with`, after `lease` seconds, with this process, or, if the
    handle was never pickled, with the handle. Data is not atomic above 8 aligned bytes.

    Args:
        data: a 1-D contiguous tensor or memoryview.
        readonly: other processes can neither write nor drop, as for read-only memory.
        lease: seconds after which the buffer ends.

    Raises `ValueError` for other data, and for a lease that is not positive; `RdmaInitError` if no transport can carry the bytes.

    ```python
    from monarch.rdma import RDMABuffer

    with RDMABuffer(memoryview(bytearray(b"weights"))) as buffer:
        copy = bytearray(buffer.size())
        buffer.read_into(memoryview(copy)).get()
        assert copy == b"weights"
    ```
    """

    __slots__ = (
        "__core__",
        "__weakref__",
        "_address",
        "_backend",
        "_host",
        "_made",
        "_number",
        "_path",
        "_pid",
        "_places",
        "_readonly",
        "_record",
        "_size",
        "_whole",
    )
    # The address of a buffer that was registered here and never pickled; else 0.
    _address: int
    __core__: Handle | DeviceHandle
    _size: int
    _readonly: bool
    _host: str
    # The jobs whose processes may use it, each with the id of its owner's host there; None if this process is the owner.
    _places: Sequence[tuple[int, int]] | None
    # Whether it was made here: registered, or a part of another buffer.
    _made: bool
    # Its number in rows of telemetry; 0 if it has none.
    _number: int
    _pid: int
    _record: CapabilityRecord
    _backend: str
    _path: Path | None
    # The whole of a part: the buffer ends with its last handle here, and so do its parts.
    _whole: RDMABuffer | None

    def __init__(self, data: LocalMemory, *, readonly: bool = False, lease: float | None = None) -> None:
        memory, lease = local_memory(data), check_lease(lease)
        self._register(memory, bool(readonly) or memory.readonly, lease, check_backend())

    def _register(self, memory: Memory, readonly: bool, lease: float | None, backend: str) -> None:
        process = this_process()
        serve_requests()
        try:
            if memory.device is None:
                handle = process.bulk.register(memory.address, memory.nbytes, readonly, lease, memory.keep)
            else:
                from monarch.rdma._gpu import device_handle  # 15 ms, with ctypes

                handle = device_handle.register(process.bulk, memory, readonly, lease)
        except BulkFailed as e:
            raise as_error(e.args[0], "share", "this process") from None
        member = process.member
        self._set(handle, memory.nbytes, readonly, (member.hostname, None), member.pid, process.record, backend, True)
        self._address = memory.address
        if is_recording():
            from monarch.rdma._buffers import observation  # most processes have no observer

            self._number = observation.made(self, lease)

    def _set(
        self,
        handle: Handle | DeviceHandle,
        size: int,
        readonly: bool,
        host: tuple[str, Sequence[tuple[int, int]] | None],
        pid: int,
        record: CapabilityRecord,
        backend: str,
        made: bool,
    ) -> None:
        self._address = self._number = 0
        self.__core__ = handle
        self._size = size
        self._readonly = readonly
        self._host, self._places = host
        self._pid = pid
        self._record = record
        self._backend = backend
        self._path = None
        self._made = made
        self._whole = None

    @property
    def backend(self) -> str:
        """The result of `get_rdma_backend()` in the owner's process when the buffer was made: what carries bytes between hosts."""
        return self._backend

    @property
    def path(self) -> str:
        """How this process reaches the memory: `local`, `shm`, `cma`, `shm-staged`, `cuda-ipc`, `verbs:<device>`, `tcp` or `routed`.

        Asks the owner once, for 2 s at most.
        """
        way = self._way()
        try:
            return way.open(self.__core__, OPENING)
        except BulkFailed as e:
            raise as_error(e.args[0], "open", self._peer(), OPENING) from None

    @property
    def owner(self) -> str:
        """The process that the memory belongs to, for people."""
        return f"{extension.ProcId(self.__core__.parts()[2])}@{self._host}:{self._pid}"

    @property
    def readonly(self) -> bool:
        return self._readonly

    def size(self) -> int:
        """Bytes."""
        return self._size

    def read_into(self, dst: LocalMemory, *, timeout: float = 60, offset: int = 0) -> Future[None]:
        """Copies the buffer from `offset` to its end into a prefix of `dst`.

        Args:
            dst: a writable 1-D contiguous tensor or memoryview that is long enough.
            timeout: seconds for set-up and transfer.
            offset: bytes of the buffer that are left out.

        Returns:
            A Future that is done when all bytes are in `dst`.

        Raises:
            ValueError: `dst` is read-only or too short, or `offset` is outside of the buffer.
            RDMATimeoutError: from the Future: the time is up.
            RDMAReleasedError: from the Future: the buffer has ended.
            RDMAPeerLostError: from the Future: the process of the owner died.
            RDMATransferError: from the Future: no transport is left.

        ```python
        from monarch.actor import Actor, endpoint, this_host
        from monarch.rdma import RDMABuffer

        class Owner(Actor):
            @endpoint
            def weights(self) -> RDMABuffer:
                return RDMABuffer(memoryview(bytearray(b"0123456789")))

        with this_host().spawn_procs({"procs": 1}) as procs:
            buffer = procs.spawn("owner", Owner).weights.call_one().get()
            last = bytearray(4)
            buffer.read_into(memoryview(last), offset=6).get()
            assert last == b"6789"
        ```
        """
        memory, offset, nbytes = reading(self, dst, offset)
        return self._start(False, memory, offset, nbytes, check_timeout(timeout))

    def write_from(self, src: LocalMemory, *, timeout: float = 60, offset: int = 0) -> Future[None]:
        r"""Copies all of `src` to the buffer, from `offset` on; the rest of the buffer stays as it is.

        Args:
            src: a 1-D contiguous tensor or memoryview.
            timeout: seconds for set-up and transfer.
            offset: bytes of the buffer before the first written one.

        Returns:
            A Future that is done when the owner has all bytes.

        Raises:
            ValueError: the bytes do not fit.
            RDMAAccessError: the handle is read-only.
            RDMAError: from the Future: as for `read_into`.

        ```python
        from monarch.rdma import RDMABuffer

        data = bytearray(8)
        with RDMABuffer(memoryview(data)) as buffer:
            buffer.write_from(memoryview(b"abc"), offset=2).get()
            assert data == b"\0\0abc\0\0\0"
        ```
        """
        memory, offset = writing(self, src, offset)
        return self._start(True, memory, offset, memory.nbytes, check_timeout(timeout))

    def _start(self, write: bool, memory: Memory, offset: int, nbytes: int, timeout: float) -> Future[None]:
        operation = "write" if write else "read"
        if self._made:
            # The last handle of a buffer that was never pickled may be dropped before the copy is done.
            memory = Memory(memory.address, memory.nbytes, memory.readonly, (memory.keep, self), memory.device)
        began: Began | None = None
        if is_recording():
            from monarch.rdma._buffers.observation import Began

            began = Began.now(operation, self._way(), self.__core__, self._peer(), nbytes)
        try:
            cell = self._way().copy(self.__core__, write, memory, offset, nbytes, timeout)
        except BulkFailed as e:
            if began is not None:
                began.refused(e.args[0])
            return bulk.failed(as_error(e.args[0], operation, self._peer(), timeout))
        if cell is None:
            future = bulk.done()
        else:
            future = bulk.future_of(cell, decoder(operation, {self.__core__.parts()[2]: self._peer()}, timeout))
        return future if began is None else began.over(future, cell)

    def restrict(self, *, offset: int = 0, length: int | None = None, readonly: bool = True) -> RDMABuffer:
        """A handle of `length` bytes from `offset` on, by default of the rest, and read-only. It ends with this buffer, or by itself.

        Asks the owner, for 2 s at most. `ValueError` for a range outside the buffer; `RDMAAccessError` for a writable part of a read-only
        handle.
        """
        offset = check_offset(offset, self._size)
        length = self._size - offset if length is None else length
        if not 0 < length <= self._size - offset:
            raise ValueError(f"length {length:,} from offset {offset:,} on is outside the buffer of {self._size:,} bytes")
        if self._readonly and not readonly:
            raise RDMAAccessError(f"restriction to {length:,} bytes, {self._peer()}: a read-only handle has read-only parts")
        try:
            handle = self.__core__.restrict(offset, length, bool(readonly), OPENING)
        except BulkFailed as e:
            raise as_error(e.args[0], "restriction", self._peer(), OPENING) from None
        part = RDMABuffer.__new__(RDMABuffer)
        part._set(handle, length, bool(readonly), (self._host, self._places), self._pid, self._record, self._backend, True)
        part._whole = self
        return part

    def map(self) -> memoryview:
        """The memory itself, as long as the view lives, also after a drop: no copy. Read-only for a read-only handle.

        `RDMAUnsupportedError` unless it is memory of `allocate` of this host.
        """
        self._way()
        try:
            return memoryview(self.__core__.map(OPENING))  # pyright: ignore[reportArgumentType]
        except BulkFailed as e:
            raise as_error(e.args[0], "map", self._peer(), OPENING) from None

    def drop(self) -> Future[None]:
        """Ends the buffer for all processes, at the call; the future reports the end of the last copy. A second drop does nothing.

        `RDMAAccessError` for a read-only handle that this process was given.
        """
        if self._readonly and not self._made:
            raise RDMAAccessError(f"drop of {self._size:,} bytes, {self._peer()}: the handle is read-only")
        cell = self.__core__.drop(60.0)
        if self._number and is_recording():
            from monarch.rdma._buffers import observation

            observation.dropped(self._number)
        if self._path is not None:
            self._path.forget(self.__core__)
        return bulk.done() if cell is None else bulk.future_of(cell, decoder("drop", {self.__core__.parts()[2]: self._peer()}, 60.0))

    def _way(self) -> Path:
        way = self._path
        if way is None:
            way = self._path = choose(this_process().record, self._record, self._host)
        return way

    def _peer(self) -> str:
        return f"process {self._pid} on {self._host}"

    def __enter__(self) -> RDMABuffer:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None:
        self.drop().get()

    async def __aenter__(self) -> RDMABuffer:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None:
        await self.drop()

    def _packed(self) -> bytes:
        id, epoch, owner, size, readonly = self.__core__.parts()
        process = this_process()
        given: RDMABuffer | None = self
        while given is not None:
            try:
                given.__core__.give()
            except BulkFailed as e:
                raise as_error(e.args[0], "share", self._peer()) from None
            if given._address:
                process.forgotten.prune(process.bulk)
                handle = given.__core__ if isinstance(given.__core__, Handle) else given.__core__.block
                process.forgotten.give(given, handle, given._address, given._size)
                given._address = 0
                if given._number and is_recording():
                    from monarch.rdma._buffers import observation

                    observation.given(given._number)
            given = given._whole
        backend, rest = _BACKENDS.index(self._backend), self._host.encode()
        if not isinstance(self.__core__, Handle):
            backend, rest = backend | _ON_DEVICE, _DEVICE_OFFSET.pack(self.__core__.offset) + rest
        (job, agent), *others = extension.places() if self._places is None else self._places
        del others[:-_MOST_PLACES]
        head = _PICKLED.pack(id, epoch, owner, size, readonly, job, self._pid, self._record.host, backend, agent, len(others))
        return head + b"".join(_PLACE.pack(*place) for place in others) + rest

    def to_bytes(self) -> bytes:
        """The handle as bytes, for messages without pickles: what a pickle has of it. `from_bytes` is the other side."""
        return self._packed()

    @staticmethod
    def from_bytes(packed: bytes) -> RDMABuffer:
        """The handle that `to_bytes` has given in any process of the job.

        `RDMAAccessError` for malformed bytes and for a handle of another job.
        """
        id, epoch, owner, size, readonly, places, pid, host, backend, rest = _unpacked(packed)
        process = this_process()
        buffer = RDMABuffer.__new__(RDMABuffer)
        on_device, device_offset = bool(backend & _ON_DEVICE), 0
        if on_device:
            if len(rest) < _DEVICE_OFFSET.size:
                raise _malformed("it ends within the offset on its device")
            (device_offset,), rest = _DEVICE_OFFSET.unpack_from(rest), rest[_DEVICE_OFFSET.size :]
            if device_offset > _MOST:
                raise _malformed(f"an offset of {device_offset:,} bytes on its device")
        try:
            name = rest.decode()
        except UnicodeDecodeError:
            raise _malformed("its host has no name in UTF-8") from None
        mine: dict[int, int] = dict(extension.places())
        job, agent = next(((job, agent) for job, agent in places if job in mine), (0, 0))
        if not job:
            raise RDMAAccessError(f"a handle of {size:,} bytes, process {pid} on {name}, is of another job: it cannot be used in this one")
        record = CapabilityRecord(host, _BACKENDS[backend & ~_ON_DEVICE] == "ibverbs")
        is_far = record.host != process.record.host
        if agent != mine[job]:
            try:
                extension.reach(owner, agent, job)
            except ValueError as e:
                raise _malformed(str(e)) from None
        if on_device:
            from monarch.rdma._gpu import device_handle  # 15 ms, with ctypes

            handle = device_handle.received(process.bulk, id, epoch, owner, size, device_offset, readonly, is_far)
        else:
            handle = process.bulk.handle(id, epoch, owner, size, readonly, is_far)
        buffer._set(handle, size, readonly, (name, places), pid, record, _BACKENDS[backend & ~_ON_DEVICE], False)
        return buffer

    def __reduce__(self) -> tuple[Any, ...]:
        return (_received, (self._packed(),))

    def __repr__(self) -> str:
        mode = ", read-only" if self._readonly else ""
        return f"<RDMABuffer of {self._size:,} bytes, {self._peer()}{mode}>"


def _received(packed: bytes) -> RDMABuffer:
    """What a pickle calls: a function of the module has a short name there."""
    return RDMABuffer.from_bytes(packed)


# Makes a buffer of one without fields, of memory that has been checked.
register: Callable[[RDMABuffer, Memory, bool, float | None, str], None] = attrgetter("_register")(RDMABuffer)


def _unpacked(packed: object) -> tuple[bytes, int, int, int, bool, list[tuple[int, int]], int, bytes, int, bytes]:
    """The fields of a pickled handle, and what follows them."""
    if not isinstance(packed, bytes):
        raise _malformed(f"{type(packed).__name__}, not bytes")
    if len(packed) < _PICKLED.size:
        raise _malformed(f"{len(packed)} bytes of at least {_PICKLED.size}")
    id, epoch, owner, size, readonly, job, pid, host, backend, agent, others = _PICKLED.unpack_from(packed)
    if not 0 < size <= _MOST:
        raise _malformed(f"a buffer of {size:,} bytes")
    if backend & ~_ON_DEVICE >= len(_BACKENDS):
        raise _malformed(f"backend {backend & ~_ON_DEVICE}")
    end = _PICKLED.size + others * _PLACE.size
    if len(packed) < end:
        raise _malformed(f"it ends within the {others} further jobs that may use it")
    places = [(job, agent), *_PLACE.iter_unpack(packed[_PICKLED.size : end])]
    return id, epoch, owner, size, readonly, places, pid, host, backend, packed[end:]


def _malformed(why: str) -> RDMAAccessError:
    return RDMAAccessError(
        f"malformed handle of an RDMA buffer: {why}", hint="handles are made by RDMABuffer, and travel as arguments, results and state"
    )
