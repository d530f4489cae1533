"""The path `verbs:<device>`: memory of other hosts, by devices of both. Bytes that they cannot carry go by the streams of `host_memory`.

This module has the outcome of one submit; rails, queues and slices are the business of `monarch.rdma.verbs`.
"""

from __future__ import annotations

import threading
from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from monarch import extension
from monarch.extension import bulk
from monarch.extension.bulk import BufferMemory, BulkFailed, Handle
from monarch.rdma._process.process import this_process
from monarch.rdma._transfer.failure import ACCESS, PEER_LOST, RELEASED, TIMED_OUT, TRANSFER, on_path, pack_named
from monarch.rdma._transfer.memory import Memory
from monarch.rdma._transfer.operation import READ, WRITE, Step
from monarch.rdma._transfer.remote_buffer import path_of
from monarch.rdma.drivers.loaded import driver
from monarch.rdma.paths.fallback_warning import warn_once
from monarch.rdma.paths.host_memory import HOST_MEMORY, largest_slice, prepared
from monarch.rdma.verbs.connection import COMPLETE, REFUSED, Piece
from monarch.rdma.verbs.connection import TIMED_OUT as LATE
from monarch.rdma.verbs.fabric import fabric
from monarch.rdma.verbs.memory import Range
from monarch.rdma.verbs.peer import Ended, Late
from monarch.rdma.verbs.question import Wanted
from monarch.rdma.verbs.service import in_thread
from monarch.rdma.verbs.usable import usable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from monarch.extension.bulk import Message, Notify, PendingCall
    from monarch.rdma._gpu.device_handle import DeviceHandle
    from monarch.rdma._process.capability import CapabilityRecord
    from monarch.rdma._transfer.operation import Operation
    from monarch.rdma.paths.path import Prepared
    from monarch.rdma.verbs.connection import Transfer
    from monarch.rdma.verbs.rails import Known


# Bytes: data of this size that is copied once arrives over a stream before a key for it would be here.
ONCE = 64 << 10
# Seconds that a transfer waits for an owner that must be queried first, before it uses streams this time.
QUERY_TIMEOUT = 0.1


class Row(NamedTuple):
    """Bytes between local memory and a buffer, from `offset` on; `start` is where the buffer begins in what has the key."""

    handle: Handle | DeviceHandle
    wanted: Wanted
    write: bool
    memory: Memory
    nbytes: int
    offset: int
    start: int


def _row(handle: Handle | DeviceHandle, write: bool, memory: Memory, nbytes: int, offset: int) -> Row:
    id, epoch, _, _, _ = handle.parts()
    on_device = not isinstance(handle, Handle)
    return Row(handle, Wanted(id, epoch, on_device), write, memory, nbytes, offset, 0 if isinstance(handle, Handle) else handle.offset)


def _range(row: Row) -> Range:
    return Range(row.memory.address, row.nbytes, row.memory.device)


class Run:
    """Rows with one owner, from the start to the end; `done` is given the record of a failure, or nothing, by any thread.

    `known` has the local memory, if the caller has it ready. `keep` keeps it.
    """

    def __init__(
        self, owner: int, rows: Sequence[Row], keep: object, until: float, done: Callable[[bytes | None], None], known: Known | None = None
    ) -> None:
        self._fabric = fabric()
        self._peer = self._fabric.peer(owner)
        self._rows = rows
        self._keep = keep
        self._until = until
        self._done = done
        self.known = known
        self._own: Known | None = None
        self._asked = sum(row.nbytes for row in rows)
        self._name = self._peer.name
        self._tried = False

    def start(self) -> None:
        allowed = bool(extension.setting("rdma_allow_tcp_fallback"))
        if any(_is_dropped(row.handle) for row in self._rows):
            self._end(self._failure(RELEASED, "it was dropped by this process"))
        elif self._peer.rests:
            self._guarded(lambda: self._by_streams([(i, 0, row.nbytes) for i, row in enumerate(self._rows)]))
        elif self._asked <= ONCE and allowed and self._peer.is_first_use([row.wanted.id for row in self._rows]):
            self._guarded(lambda: self._by_streams([(i, 0, row.nbytes) for i, row in enumerate(self._rows)]))
        elif self._peer.is_open([row.wanted.id for row in self._rows]) and all(row.memory.device is None for row in self._rows):
            self._guarded(self._submit)
        else:
            in_thread(lambda: self._guarded(self._open), "rdma opening")

    def _guarded(self, step: Callable[[], None]) -> None:
        """No caller waits for ever: a defect of this package is an error, too."""
        try:
            step()
        except Exception as e:
            self._end(self._failure(TRANSFER, f"{type(e).__name__}: {e}"))

    def _open(self) -> None:
        everything = [(i, 0, row.nbytes) for i, row in enumerate(self._rows)]
        for device in {row.memory.device for row in self._rows if row.memory.device is not None}:
            # Earlier queued work may still write the memory, or read it.
            with driver().on(device):
                driver().synchronize()
        allowed = bool(extension.setting("rdma_allow_tcp_fallback"))
        # The query needs the owner's Python, which may be busy; streams do not.
        until = min(self._until, monotonic() + QUERY_TIMEOUT) if allowed else self._until
        try:
            self._peer.open(list(dict.fromkeys(row.wanted for row in self._rows)), until)
        except Late:
            if allowed:
                self._by_streams(everything)
            else:
                self._end(self._failure(TIMED_OUT, "", opened=False))
        except Ended:
            self._end(self._failure(PEER_LOST, ""))
        except BulkFailed as e:
            self._end(on_path(e.args[0], self._name, 0, self._asked))
        except OSError as e:
            self._by_streams(everything, str(e))
        else:
            self._submit()

    def _submit(self) -> None:
        connection = self._peer.connection
        assert connection is not None
        self._name = self._peer.name
        known = self.known
        if known is None:
            try:
                known = self._own = self._fabric.rails().know([_range(row) for row in self._rows])
            except OSError as e:
                self._by_streams([(i, 0, row.nbytes) for i, row in enumerate(self._rows)], str(e))
                return
        pieces: list[Piece] = []
        for row in self._rows:
            region = self._peer.region(row.wanted.id)
            if region is None:  # there are more regions than are kept
                self._own_over()
                in_thread(lambda: self._guarded(self._open), "rdma opening")
                return
            size, readonly = row.handle.parts()[3:]
            # The key of memory of a GPU is for the tensor, of which the buffer may be a part.
            fits = region.nbytes >= row.start + size if row.wanted.on_device else region.nbytes == size
            if not fits or not (region.writable or readonly):
                self._end(self._failure(ACCESS, "the handle's epoch, length or access differs from the owner's record"))
                return
            keys, address = known.place(row.memory.address)
            pieces.append(Piece(row.write, address, row.nbytes, keys, region.address + row.start + row.offset, region.keys))
        connection.submit(pieces, max(0.0, self._until - monotonic()), lambda transfer: self._guarded(lambda: self._ended(transfer)))

    def _ended(self, transfer: Transfer) -> None:
        self._own_over()
        if transfer.state == COMPLETE:
            self._end(None)
        elif transfer.state == LATE:
            self._end(self._failure(TIMED_OUT, "", done=transfer.done))
        elif extension.end_of(self._peer.uid) is not None:
            self._end(self._failure(PEER_LOST, "", done=transfer.done))
        else:
            if transfer.state == REFUSED:
                # The key may be that of a buffer that has ended: its owner is queried the next time.
                for attempt in transfer.attempts:
                    self._peer.forget(self._rows[attempt.piece].wanted.id)
            tries = [
                f"{self._name}, {one.rail}: {one.status}, bytes {one.offset:,} to {one.offset + one.nbytes:,}" for one in transfer.attempts
            ]
            troubles = self._peer.connection.troubles if self._peer.connection is not None else []
            self._tried = True
            self._by_streams(list(transfer.left()), "\n".join(tries or troubles), transfer.done)

    def _by_streams(self, left: list[tuple[int, int, int]], why: str = "", done: int = 0) -> None:
        """What devices have not carried: row, offset in it, bytes. Where settings forbid streams, they only report the state of buffers."""
        if not left:
            self._end(None)
            return
        allowed = bool(extension.setting("rdma_allow_tcp_fallback"))
        steps = [_part(self._rows[i], at, n) for i, at, n in left]
        if not allowed:
            memory = BufferMemory(bytearray(1))
            scratch = Memory(memory.address, 1, False, memory)
            steps = [step._replace(kind=READ, memory=scratch, nbytes=1, offset=0) for step in steps]
        # This includes memory on a GPU.
        cell = prepared(steps, self._keep).submit(max(0.0, self._until - monotonic()), largest_slice(), None)

        def ended() -> None:
            error = cell.error()
            if error is None:
                self._end(None if allowed else self._failure(TRANSFER, why or self._peer.trouble or "devices do not reach it", done=done))
            else:
                record = bytes(error.raw())
                self._end(on_path(record, self._name, done, self._asked, why) if self._tried or not allowed else record)

        self._fabric.service.when_done(cell, ended)

    def _own_over(self) -> None:
        own, self._own = self._own, None
        if own is not None:
            own.release()

    def _end(self, record: bytes | None) -> None:
        self._own_over()
        self._keep = None
        self._done(record)

    def _failure(self, kind: int, detail: str, *, opened: bool = True, done: int = 0) -> bytes:
        return pack_named(kind, self._name, opened, done, self._asked, self._peer.uid, detail)


def _part(row: Row, at: int, nbytes: int) -> Step:
    memory = row.memory._replace(address=row.memory.address + at, nbytes=nbytes)
    return Step(row.handle, WRITE if row.write else READ, memory, nbytes, row.offset + at)


def _is_dropped(handle: Handle | DeviceHandle) -> bool:
    return (handle if isinstance(handle, Handle) else handle.block).is_dropped()


class VerbsPlan:
    """Operations of which some go by devices; the others are a plan of `host_memory`. Submits run one after the other."""

    def __init__(self, operations: Sequence[Operation], by_devices: Sequence[Operation]) -> None:
        self.operations = tuple(operations)
        self.groups: dict[int, list[Row]] = {}
        chosen = {id(op) for op in by_devices}
        rest: list[Operation] = []
        for op in operations:
            handle = op.buffer.__core__
            if id(op) in chosen:
                row = _row(handle, op.kind == WRITE, op.memory, op.nbytes, op.offset)
                self.groups.setdefault(handle.parts()[2], []).append(row)
            else:
                rest.append(op)
        self.rest = HOST_MEMORY.plan(rest) if rest else None
        self.known: Known | None = None
        self._lock = threading.Lock()
        self._submits: deque[_Submit] = deque()

    def open(self, timeout: float) -> None:
        """What cannot be opened fails when it is submitted."""
        until = monotonic() + timeout
        for owner, rows in self.groups.items():
            try:
                fabric().peer(owner).open(list(dict.fromkeys(row.wanted for row in rows)), until)
            except (OSError, BulkFailed, Late, Ended):
                continue
        try:
            rails = fabric().rails()
            self.known = rails.know([_range(row) for rows in self.groups.values() for row in rows])
        except OSError:
            pass
        if self.rest is not None:
            self.rest.open(max(0.0, until - monotonic()))

    def __del__(self) -> None:
        # A submit keeps the plan. The garbage collector may run at any time, also while a lock is held that this takes.
        if self.known is not None:
            fabric().service.run(self.known.release)

    def one_of_each_owner(self) -> list[Handle | DeviceHandle]:
        return [rows[0].handle for rows in self.groups.values()]

    def in_flight(self) -> bool:
        return bool(self._submits)

    def submit(self, timeout: float, most: int, notify: Notify | None) -> PendingCall:
        message = None if notify is None else this_process().bulk.notice(notify)
        submit = _Submit(self, bulk.pending_call(), monotonic() + timeout, most, message)
        with self._lock:
            self._submits.append(submit)
            first = len(self._submits) == 1
        if first:
            submit.start()
        return submit.cell

    def end_submit(self) -> None:
        """The oldest submit is over: starts the next one."""
        with self._lock:
            self._submits.popleft()
            following = self._submits[0] if self._submits else None
        if following is not None:
            following.start()


class _Submit:
    """All runs of one submit of a plan."""

    def __init__(self, plan: VerbsPlan, cell: PendingCall, until: float, most: int, message: Message | None) -> None:
        self.cell = cell
        self._plan = plan
        self._until = until
        self._most = most
        self._message = message
        self._lock = threading.Lock()
        self._left = len(plan.groups) + (plan.rest is not None)
        self._record: bytes | None = None

    def start(self) -> None:
        plan = self._plan
        runs = [Run(owner, rows, plan.operations, self._until, self._ended, plan.known) for owner, rows in plan.groups.items()]
        if plan.rest is not None:
            rest = plan.rest.submit(max(0.0, self._until - monotonic()), self._most, None)
            fabric().service.when_done(rest, lambda: self._ended(_record_of(rest)))
        for run in runs:
            run.start()

    def _ended(self, record: bytes | None) -> None:
        with self._lock:
            self._left -= 1
            self._record = self._record or record
            if self._left:
                return
        record = self._record
        if record is None and self._message is not None:
            try:
                self._message.send()
            except BulkFailed as e:
                record = e.args[0]
        self._plan.end_submit()
        bulk.complete(self.cell, record)


def _record_of(cell: PendingCall) -> bytes | None:
    error = cell.error()
    return None if error is None else bytes(error.raw())


class Verbs:
    """The path of buffers on other hosts, where both sides have devices."""

    def reaches(self, mine: CapabilityRecord, theirs: CapabilityRecord) -> bool:
        return mine.host != theirs.host and theirs.has_rails and usable()

    def open(self, handle: Handle | DeviceHandle, timeout: float) -> str:
        id, epoch, owner, size, _ = handle.parts()
        peer = fabric().peer(owner)
        until = monotonic() + timeout
        if not peer.rests:
            try:
                peer.open([Wanted(id, epoch, not isinstance(handle, Handle))], until)
            except Late:
                raise BulkFailed(pack_named(TIMED_OUT, peer.name, False, 0, size, owner, "")) from None
            except Ended:
                raise BulkFailed(pack_named(PEER_LOST, peer.name, False, 0, size, owner, "")) from None
            except OSError:
                return HOST_MEMORY.open(handle, timeout)
            if peer.repair(until):
                return peer.name
        return HOST_MEMORY.open(handle, timeout)

    def _warn_if_rests(self, handle: Handle | DeviceHandle) -> None:
        """Devices do not reach its owner: bytes go over streams for a while, which is not to be a silent surprise."""
        if fabric().peer(handle.parts()[2]).rests:
            warn_once("of a process that devices do not reach")

    def copy(
        self, handle: Handle | DeviceHandle, write: bool, memory: Memory, offset: int, nbytes: int, timeout: float
    ) -> PendingCall | None:
        self._warn_if_rests(handle)
        cell = bulk.pending_call()
        row = _row(handle, write, memory, nbytes, offset)
        run = Run(handle.parts()[2], [row], memory.keep, monotonic() + timeout, lambda record: bulk.complete(cell, record))
        run.start()
        return cell

    def forget(self, handle: Handle | DeviceHandle) -> None:
        """The buffer was dropped by this process."""
        id, _, owner, _, _ = handle.parts()
        fabric().peer(owner).forget(id)

    def plan(self, operations: Sequence[Operation]) -> Prepared:
        by_devices = [op for op in operations if path_of(op.buffer) is self and op.kind in (READ, WRITE)]
        return VerbsPlan(operations, by_devices) if by_devices else HOST_MEMORY.plan(operations)

    def submit(self, plan: Prepared, timeout: float, notify: Notify | None) -> PendingCall:
        if isinstance(plan, VerbsPlan):
            for handle in plan.one_of_each_owner():
                self._warn_if_rests(handle)
        return plan.submit(timeout, largest_slice(), notify)


VERBS = Verbs()
