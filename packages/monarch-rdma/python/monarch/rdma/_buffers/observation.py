"""What this process reports of its buffers and operations: rows of the tables `rdma_buffers` and `rdma_ops`.

A row is an event with the name of its table, whose fields are the columns. Nothing is made while no observer records. A buffer is reported
by a number that counts the buffers of its process, never by its capability. A buffer from before has no row.
The owner learns nothing of the end of a buffer that another process drops: its row stays until its process ends.
"""

from __future__ import annotations

import itertools
import time
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

from monarch.extension import when_done
from monarch.extension.bulk import BulkFailed
from monarch.extension.events import emit
from monarch.rdma._transfer.failure import parse, summary

if TYPE_CHECKING:
    from monarch.actor import Future
    from monarch.extension.bulk import Handle, PendingCall
    from monarch.rdma._gpu.device_handle import DeviceHandle
    from monarch.rdma._transfer.remote_buffer import RemoteBuffer
    from monarch.rdma.paths.path import Path

_numbers = itertools.count(1)
# Buffers of which other processes have handles: they end with a drop, and not with the handle here.
_given: set[int] = set()


def made(buffer: RemoteBuffer, lease: float | None) -> int:
    """A buffer was registered here; the number that identifies it in rows."""
    number = next(_numbers)
    until = {} if lease is None else {"lease_until_us": int((time.time() + lease) * 1e6)}
    emit("rdma_buffers", buffer=number, bytes=buffer.size(), readonly=buffer.readonly, given_away=False, **until)
    weakref.finalize(buffer, _gone, number).atexit = False
    return number


def given(number: int) -> None:
    """Another process gets a handle of it."""
    if number not in _given:
        _given.add(number)
        emit("rdma_buffers", buffer=number, given_away=True)


def dropped(number: int) -> None:
    """It has ended, by a handle of this process."""
    _given.discard(number)
    emit("rdma_buffers", buffer=number, ended=True)


def _gone(number: int) -> None:
    if number not in _given:
        emit("rdma_buffers", buffer=number, ended=True)


class Began(NamedTuple):
    """An operation that is reported when it is over. `peer` is its owner for people, `handle` a buffer of it, None for a batch of none."""

    op: str
    way: Path
    handle: Handle | DeviceHandle | None
    peer: str
    nbytes: int
    at: float
    since: float

    @classmethod
    def now(cls, op: str, way: Path, handle: Handle | DeviceHandle | None, peer: str, nbytes: int) -> Began:
        return cls(op, way, handle, peer, nbytes, time.time(), time.monotonic())

    def over(self, future: Future[None], cell: PendingCall | None) -> Future[None]:
        """The future again; the operation is reported as soon as it is done."""
        if cell is None:
            self._report(None)
        else:
            # The callback reads the cell directly: an error must still count as unseen by readers.
            when_done(future, lambda _: self._report(None if (error := cell.error()) is None else bytes(error.raw())))
        return future

    def refused(self, record: bytes) -> None:
        """It has failed before it began."""
        self._report(record)

    def _report(self, error: bytes | None) -> None:
        fields: dict[str, Any] = {}
        if error is not None:
            failure = parse(error)
            fields = {"path": failure.path, "bytes": failure.done, "error": summary(failure)}
        else:
            fields = {"path": self._path(), "bytes": self.nbytes}
        if self.handle is not None:
            fields["peer_id"] = self.handle.parts()[2]
        latency = int((time.monotonic() - self.since) * 1e6)
        emit("rdma_ops", timestamp_us=int(self.at * 1e6), op=self.op, peer=self.peer, latency_us=latency, retries=0, **fields)

    def _path(self) -> str:
        if self.handle is None:
            return "none"
        try:
            # The transport is known since the operation: no process is queried.
            return self.way.open(self.handle, 0.0)
        except BulkFailed as e:  # the buffer has ended meanwhile
            return parse(e.args[0]).path
