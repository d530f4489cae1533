"""The memory that this process shares with others, opened on first use and closed at exit."""

from __future__ import annotations

import atexit
import os
from _thread import RLock
from typing import NamedTuple

from monarch import extension
from monarch.extension import bulk
from monarch.extension.bulk import Bulk
from monarch.rdma._process.capability import CapabilityRecord, own_record
from monarch.rdma._process.forgotten import Forgotten
from monarch.rdma.errors import RDMAUnsupportedError

# Set for tests and for machines on which direct copies are permitted and slow: connections copy through rings.
FORCE_STAGED = "MONARCH_RDMA_FORCE_STAGED"
# Requests of other processes (`_buffers.requests`): to copy memory of a GPU, and about devices (`verbs.question`).
COPY = "monarch-rdma.copy"
DEVICES = "monarch-rdma.devices"


class Process(NamedTuple):
    """This process: its memory, its identity, and its abilities."""

    bulk: Bulk
    member: extension.Member
    record: CapabilityRecord
    forgotten: Forgotten


_lock = RLock()
_process: Process | None = None


def this_process() -> Process:
    process = _process
    if process is not None and process.member.pid == os.getpid() and not extension.is_simulated():
        return process
    return _open()


def _open() -> Process:
    global _process
    if extension.is_simulated():
        raise RDMAUnsupportedError("the processes of a Universe share one memory: buffers are for real processes")
    with _lock:
        if _process is None or _process.member.pid != os.getpid():
            # This raises in a process that was forked from one that uses Monarch.
            member = extension.member()
            native = bulk.open_bulk(
                extension.seconds("rdma_qp_init_timeout") or 0.0, int(extension.setting("rdma_tcp_fallback_parallelism"))
            )
            if os.environ.get(FORCE_STAGED) == "1":
                native.refuse_direct()
            _process = Process(native, member, own_record(), Forgotten())
            atexit.register(_close, _process)
        return _process


def _close(process: Process) -> None:
    if process.member.pid == os.getpid():
        warning = process.forgotten.warning(process.bulk)
        if warning:
            from logging import getLogger  # 5 ms, and most processes have nothing to warn of

            getLogger("monarch.rdma").warning("%s", warning)
    process.bulk.close()
