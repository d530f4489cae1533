"""Files of snapshots as bulk memory: offered by one process of the job, copied by native code into a file of another one."""

from __future__ import annotations

import os
import threading
from typing import NamedTuple

from monarch.actor import Future
from monarch.extension.bulk import BufferMemory, Bulk, BulkFailed, Handle, PendingCall, done, future_of, open_bulk
from monarch.spmd.errors import SPMDError
from monarch.spmd.snapshot_file import SnapshotFile

# Bytes of one copy.
_SLICE = 64 << 20
# Seconds without an answer of the owner, and the slowest accepted link in bytes per second.
_ANSWER_TIMEOUT_S, _SLOWEST = 60.0, 10e6


class Offer(NamedTuple):
    """Memory that other processes of the job may read: its name for native code, and the machine that it is on."""

    id: bytes
    epoch: int
    owner: int
    nbytes: int
    machine: str


class OfferedFile:
    """A file that others may copy until `end`. The memory cannot go before, nor while it is being read."""

    def __init__(self, file: SnapshotFile) -> None:
        memory = BufferMemory(file.view())
        self._handle: Handle = _bulk().register(memory.address, memory.nbytes, True, None, memory)
        id, epoch, owner, nbytes, _ = self._handle.parts()
        self._handle.give()
        self.offer = Offer(id, epoch, owner, nbytes, _machine())

    def end(self) -> Future[None]:
        """Nothing reads it any more once the future is done."""
        cell = self._handle.drop(_ANSWER_TIMEOUT_S)
        return done() if cell is None else future_of(cell, _decode)


def pull(offer: Offer, file: SnapshotFile, nbytes: int) -> Future[None]:
    """Copies offered memory of so many bytes into a file, which gets that size. The future raises `SPMDError` where that fails.

    `SPMDError` at once for memory of another size: this host may not have room for it.
    """
    if offer.nbytes != nbytes:
        raise SPMDError(f"{offer.nbytes:,} bytes are offered for a state of {nbytes:,} bytes", code="snapshot_failed")
    file.resize(offer.nbytes)
    memory = BufferMemory(file.view())
    handle = _bulk().handle(offer.id, offer.epoch, offer.owner, offer.nbytes, True, offer.machine != _machine())
    limit = _ANSWER_TIMEOUT_S + offer.nbytes / _SLOWEST
    try:
        cell = handle.transfer(False, memory.address, offer.nbytes, (memory, handle), 0, limit, _SLICE)
    except BulkFailed:
        raise _failed() from None
    return done() if cell is None else future_of(cell, _decode)


def _decode(cell: PendingCall) -> None:
    if cell.error() is not None:
        raise _failed()


def _failed() -> SPMDError:
    return SPMDError("the state could not be copied from its process: it has ended, or its host does not answer", code="snapshot_failed")


_lock = threading.Lock()
_opened: Bulk | None = None


def _bulk() -> Bulk:
    """That of this process, which is one of Monarch's own: it is not forked."""
    global _opened
    with _lock:
        if _opened is None:
            _opened = open_bulk()
        return _opened


def _machine() -> str:
    """Equal for processes that can read each other's memory: of one boot, one network namespace and one user."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        network = os.stat("/proc/self/ns/net").st_ino
    except OSError:  # parts of /proc are hidden: each process counts as a machine, and memory goes over streams
        boot, network = str(os.getpid()), 0
    return f"{boot}/{network}/{os.geteuid()}"
