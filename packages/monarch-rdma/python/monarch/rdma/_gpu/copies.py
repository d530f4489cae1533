"""Copies from and to memory of GPUs, by a thread of this process, one after the other; and, by a second one, for others that ask.

Between two GPUs, or within one, the driver copies. Where one end is memory of the host, here or in another process, chunks go through two
pinned pieces of memory in turn, so that the GPU and the host's side work at the same time. A copy that fails or is late ends when the GPU
has finished what it was given: once its future is done, nothing touches the memory any more.
"""

from __future__ import annotations

import ctypes
from _thread import allocate_lock
from struct import Struct
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple, Protocol

from monarch import extension
from monarch.extension import bulk
from monarch.extension.bulk import BulkFailed, Plan
from monarch.rdma._gpu.device_handle import DeviceHandle, received, wait
from monarch.rdma._gpu.worker import ASKED, OWN, Worker
from monarch.rdma._process.process import COPY, this_process
from monarch.rdma._transfer.failure import ACCESS, CUDA_IPC, TIMED_OUT, TRANSFER, UNSUPPORTED, pack, resized
from monarch.rdma._transfer.memory import Memory
from monarch.rdma._transfer.operation import WRITE
from monarch.rdma.drivers.library import DriverError
from monarch.rdma.drivers.loaded import driver

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from monarch.extension import Request
    from monarch.extension.bulk import Handle, Notify, PendingCall
    from monarch.rdma._transfer.operation import Step
    from monarch.rdma.drivers.driver import Device, Driver, Pointer

# Bytes of a pinned piece, and of the copies between two checks of the time.
_CHUNK = 4 << 20
_COPY_BYTES = 256 << 20
# Seconds for an owner to confirm after a failure that a buffer exists.
_LOOK = 1.0
# Seconds for the end of copies for which no code waits any more.
_SETTLING = 60.0


class _Late(Exception):
    """Time is up."""


class Copy(NamedTuple):
    """Between local memory and a buffer, one of which is on a GPU."""

    handle: Handle | DeviceHandle
    write: bool
    memory: Memory
    offset: int
    nbytes: int


class _Host(Protocol):
    """Memory of the host at one end of a copy."""

    def get(self, at: int, address: int, nbytes: int) -> None: ...
    def put(self, at: int, address: int, nbytes: int) -> None: ...


class _LocalHost:
    def __init__(self, address: int) -> None:
        self.address = address

    def get(self, at: int, address: int, nbytes: int) -> None:
        ctypes.memmove(address, self.address + at, nbytes)

    def put(self, at: int, address: int, nbytes: int) -> None:
        ctypes.memmove(self.address + at, address, nbytes)


class _RemoteHost:
    """A buffer on whatever path native code has for it."""

    def __init__(self, handle: Handle, offset: int, until: float) -> None:
        self.handle = handle
        self.offset = offset
        self.until = until

    def get(self, at: int, address: int, nbytes: int) -> None:
        wait(self.handle.transfer(False, address, nbytes, None, self.offset + at, _left(self.until), _CHUNK))

    def put(self, at: int, address: int, nbytes: int) -> None:
        wait(self.handle.transfer(True, address, nbytes, None, self.offset + at, _left(self.until), _CHUNK))


def _left(until: float) -> float:
    left = until - monotonic()
    if left <= 0:
        raise _Late
    return left


class _Stage:
    """What a thread that copies has of a device: two streams; and two pinned pieces, which are of all devices."""

    def __init__(self, loaded: Driver, pieces: tuple[int, int]) -> None:
        """With the context of the device."""
        self.driver = loaded
        self.pieces = pieces
        self.streams = loaded.stream(), loaded.stream()

    def between(self, target: Pointer, source: Pointer, nbytes: int, until: float) -> None:
        for at in range(0, nbytes, _COPY_BYTES):
            _left(until)
            self.driver.between(target + at, source + at, min(_COPY_BYTES, nbytes - at), self.streams[0])
            self.driver.wait(self.streams[0])

    def to_device(self, pointer: Pointer, host: _Host, nbytes: int, until: float) -> None:
        for i, at in enumerate(range(0, nbytes, _CHUNK)):
            n, piece, stream = min(_CHUNK, nbytes - at), self.pieces[i % 2], self.streams[i % 2]
            # The previous content of this piece has arrived.
            self.driver.wait(stream)
            _left(until)
            host.get(at, piece, n)
            self.driver.to_device(pointer + at, piece, n, stream)

    def to_host(self, pointer: Pointer, host: _Host, nbytes: int, until: float) -> None:
        starts = range(0, nbytes, _CHUNK)
        for i in range(len(starts) + 1):
            if i < len(starts):
                _left(until)
                n = min(_CHUNK, nbytes - starts[i])
                self.driver.to_host(self.pieces[i % 2], pointer + starts[i], n, self.streams[i % 2])
            if i:
                # The previous piece is copied while this one is in flight.
                at = starts[i - 1]
                self.driver.wait(self.streams[(i - 1) % 2])
                host.put(at, self.pieces[(i - 1) % 2], min(_CHUNK, nbytes - at))

    def settle(self) -> None:
        for stream in self.streams:
            self.driver.wait(stream)


class _Copies:
    """The copies of one thread."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._stages: dict[Device, _Stage] = {}

    def begin(self, task: Callable[[], object]) -> None:
        """Queues a task, which may call `attempt`."""
        self._worker.start()
        self._worker.later(task)

    def _stage(self, device: Device) -> _Stage:
        """With the context of the device."""
        found = self._stages.get(device)
        if found is None:
            loaded = driver()
            others = next(iter(self._stages.values()), None)
            pieces = others.pieces if others else (loaded.pinned(_CHUNK), loaded.pinned(_CHUNK))
            found = self._stages[device] = _Stage(loaded, pieces)
        return found

    def attempt(self, copies: Sequence[Copy], until: float) -> bytes | None:
        """One after the other; the record of the first that failed."""
        done, asked = 0, sum(copy.nbytes for copy in copies)
        for copy in copies:
            handle = copy.handle
            failure = handle.failure if isinstance(handle, DeviceHandle) else _host_failure(handle)
            try:
                self._run(copy, until)
            except _Late:
                return resized(failure(TIMED_OUT, ""), done, asked)
            except BulkFailed as e:
                return resized(e.args[0], done, asked)
            except DriverError as e:
                unreachable = isinstance(handle, DeviceHandle) and not handle.is_open
                record = _end_of(handle) or failure(UNSUPPORTED if unreachable else TRANSFER, str(e))
                return resized(record, done, asked)
            done += copy.nbytes
        return None

    def _run(self, copy: Copy, until: float) -> None:
        """With all that can go wrong; the GPU has finished in any case."""
        handle, memory = copy.handle, copy.memory
        if memory.device is not None:
            # Earlier queued work may still write the memory, or read it.
            with driver().on(memory.device):
                driver().synchronize()
        if not isinstance(handle, DeviceHandle):
            assert memory.device is not None
            self._stage_with(memory.device, memory.address, _RemoteHost(handle, copy.offset, until), copy, copy.write, until)
            return
        place = handle.open(_left(until))
        handle.check(_left(until))
        if handle.is_own:
            with driver().on(place.device):
                driver().synchronize()
        if not place.pointer:
            owner = _Owner(handle, copy.offset, until)
            if memory.device is not None:
                self._stage_with(memory.device, memory.address, owner, copy, copy.write, until)
            else:
                (owner.put if copy.write else owner.get)(0, memory.address, copy.nbytes)
        elif memory.device is None:
            self._stage_with(place.device, place.pointer + copy.offset, _LocalHost(memory.address), copy, not copy.write, until)
        else:
            pair = memory.address, place.pointer + copy.offset
            target, source = pair[::-1] if copy.write else pair
            with driver().on(place.device):
                stage = self._stage(place.device)
                try:
                    stage.between(target, source, copy.nbytes, until)
                finally:
                    stage.settle()
        handle.check(_left(until))

    def _stage_with(self, device: Device, pointer: Pointer, host: _Host, copy: Copy, to_host: bool, until: float) -> None:
        with driver().on(device):
            stage = self._stage(device)
            try:
                (stage.to_host if to_host else stage.to_device)(pointer, host, copy.nbytes, until)
            finally:
                stage.settle()


def _end_of(handle: Handle | DeviceHandle) -> bytes | None:
    """The end of a buffer, or of its owner, if that is behind the error of the driver."""
    try:
        if isinstance(handle, DeviceHandle):
            handle.check(_LOOK)
    except BulkFailed as e:
        return e.args[0]
    return None


def _host_failure(handle: Handle) -> Callable[[int, str], bytes]:
    _, _, owner, _, _ = handle.parts()
    return lambda kind, detail: pack(kind, CUDA_IPC, True, 0, 0, owner, detail)


_lock = allocate_lock()
_own = _Copies(OWN)
_asked = _Copies(ASKED)


def start(copy: Copy, timeout: float) -> PendingCall:
    """Begins when what was asked for before has ended."""
    cell, until = bulk.pending_call(), monotonic() + timeout
    _own.begin(lambda: bulk.complete(cell, _guarded(lambda: _own.attempt([copy], until), copy.handle)))
    return cell


def _guarded(body: Callable[[], bytes | None], handle: Handle | DeviceHandle) -> bytes | None:
    """No caller waits for ever: a defect of this package is an error, too."""
    try:
        return body()
    except Exception as e:
        return pack(TRANSFER, CUDA_IPC, True, 0, 0, handle.parts()[2], f"{type(e).__name__}: {e}")


# A question: the block of the buffer (id, epoch), the offset, the size, whether to write; the registration at the requester, the
# requester's host by its capability record and by its agent; seconds.
_QUESTION = Struct("<16sQQQ??16sQQ8sQd")


class _Owner:
    """Memory of a GPU that its owner does not export: asked to, it copies from and to memory of the host here."""

    def __init__(self, handle: DeviceHandle, offset: int, until: float) -> None:
        self.handle = handle
        self.offset = handle.offset + offset
        self.until = until

    def get(self, at: int, address: int, nbytes: int) -> None:
        self._ask(False, at, address, nbytes)

    def put(self, at: int, address: int, nbytes: int) -> None:
        self._ask(True, at, address, nbytes)

    def _ask(self, write: bool, at: int, address: int, nbytes: int) -> None:
        left = _left(self.until)
        # The memory of a read may be read-only for all processes.
        process = this_process()
        mine = process.bulk.register(address, nbytes, write, None, None)
        mine.give()
        (id, epoch, owner, _, readonly), (my_id, my_epoch, me, _, _) = self.handle.block.parts(), mine.parts()
        there = process.record.host, process.member.host
        question = _QUESTION.pack(id, epoch, self.offset + at, nbytes, write, readonly, my_id, my_epoch, me, *there, left)
        try:
            extension.ask(owner, COPY, question).get(timeout=left)
        except TimeoutError:
            raise _Late from None
        except extension.RequestError as e:
            # Without a record, there is no handler, or the process has ended.
            record = _end_of(self.handle) or e.body or self.handle.failure(TRANSFER, "the owner does not copy for others")
            raise BulkFailed(record) from None
        finally:
            # Afterwards no process accesses the memory any more, whatever the outcome of the question.
            wait(mine.drop(_SETTLING))


def answer(request: Request) -> None:
    """Another process has asked for a copy, on the extension thread."""
    if len(request.body) != _QUESTION.size:
        raise ValueError(f"malformed request for a copy: {len(request.body)} bytes, expected {_QUESTION.size}")
    id, epoch, offset, nbytes, write, readonly, their_id, their_epoch, they, host, agent, left = _QUESTION.unpack(request.body)
    process, until = this_process(), monotonic() + left
    handle = received(process.bulk, id, epoch, process.member.proc, nbytes, offset, readonly, False)
    is_far = host != process.record.host
    if is_far:
        extension.reach(they, agent)
    theirs = process.bulk.handle(their_id, their_epoch, they, nbytes, write, is_far)

    def run() -> bytes | None:
        if write and readonly:
            return handle.failure(ACCESS, "the handle is read-only")
        try:
            place = handle.open(_left(until))
        except BulkFailed as e:
            return e.args[0]
        except (DriverError, _Late) as e:
            return handle.failure(TRANSFER, str(e) or "no time is left")
        memory = Memory(place.pointer, nbytes, not write, handle, place.device)
        return _asked.attempt([Copy(theirs, not write, memory, 0, nbytes)], until)

    def reply() -> None:
        failure = _guarded(run, handle)
        if failure is None:
            request.answer()
        else:
            request.fail(failure)

    request.defer()
    _asked.begin(reply)


class DevicePlan:
    """Operations of which some have an end on a GPU: those first, then the others, by a plan of native code."""

    def __init__(self, steps: Sequence[Step], keep: object) -> None:
        self._copies = [Copy(step.handle, step.kind == WRITE, step.memory, step.offset, step.nbytes) for step in steps if step.on_device]
        # The buffers, which keep the objects of their last handles.
        self._keep = keep
        rows: list[tuple[Handle, int, int, int, int, int, int]] = []
        for handle, kind, memory, nbytes, offset, first, second in steps:
            if memory.device is None and not isinstance(handle, DeviceHandle):
                rows.append((handle, kind, memory.address, nbytes, offset, first, second))
        self._rest = Plan(this_process().bulk, rows, keep)
        self._running = 0

    def open(self, timeout: float) -> None:
        """What cannot be opened fails when it is submitted."""
        until = monotonic() + timeout
        for copy in self._copies:
            try:
                if isinstance(copy.handle, DeviceHandle):
                    copy.handle.open(_left(until))
            except (BulkFailed, DriverError, _Late):
                continue
        self._rest.open(max(0.0, until - monotonic()))

    def in_flight(self) -> bool:
        return self._running > 0

    def submit(self, timeout: float, most: int, notify: Notify | None) -> PendingCall:
        cell, until = bulk.pending_call(), monotonic() + timeout
        with _lock:
            self._running += 1

        def run() -> None:
            record = _guarded(lambda: self._run(until, most, notify), self._copies[0].handle)
            with _lock:
                self._running -= 1
            bulk.complete(cell, record)

        _own.begin(run)
        return cell

    def _run(self, until: float, most: int, notify: Notify | None) -> bytes | None:
        record = _own.attempt(self._copies, until)
        if record is None:
            try:
                # The rest may be empty; it sends the notice.
                wait(self._rest.submit(max(0.0, until - monotonic()), most, notify))
            except BulkFailed as e:
                record = e.args[0]
        return record
