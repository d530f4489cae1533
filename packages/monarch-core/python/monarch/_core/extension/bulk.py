"""Memory that other processes may read and write: registered here, shared by handles, transferred by native code of this package.

`Bulk` is the memory of a process, `Handle` a block of it that can be sent, `Plan` several transfers at once. Their failures are
`BulkFailed`, whose bytes are a record (`rust/bulk/src/failure.rs`): kind, transport, bytes done and requested, owner, and a text.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, TypeAlias

from monarch._core._native.bulk import Bulk
from monarch._core._native.protocol import ERROR, FIRST_ERROR, OK
from monarch._core.call.future import Future, done_future, failed_future, new_future
from monarch._core.process.current import current_process

if TYPE_CHECKING:
    from collections.abc import Callable

    from monarch._core._native import PendingCall
    from monarch._core.call.port import Port
    from monarch._core.process.process import LocalProcess

# A port for one message, in the form for native code: its process, mailbox and call, its rank, the action after a failed delivery; the
# value.
Notify: TypeAlias = tuple[int, int, bool, int | None, bool, object]


def open_bulk(opening: float = 30.0, streams: int = 1) -> Bulk:
    """The memory that this process shares with others.

    `opening` bounds the time to open a connection to another process, in seconds; `streams` is the number of connections to each: 1
    chooses.
    """
    process = current_process()
    return Bulk(process.native, process.peers.job, _tracer(process), opening, max(streams, 1))


def _tracer(process: LocalProcess) -> int:
    """The process that this one must register with Yama: all other processes of the job on this host are its descendants, or it is one
    itself.
    """
    if process.is_client:
        return process.native.zygote_pid() or 0
    try:
        with open(f"/proc/{os.getppid()}/stat") as f:
            # The parent of this process's zygote is the agent. A process name may hold any character, also blanks and brackets.
            return int(f.read().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def pending_call() -> PendingCall:
    """A pending call: a future waits for it, and `complete` or native code fills it."""
    return current_process().native.cell(FIRST_ERROR, 1, [])


def complete(call: PendingCall, failure: bytes | None) -> None:
    """Fills a pending call, from any thread: with no value, or with the bytes of a failure."""
    call.complete(0, OK if failure is None else ERROR, failure or b"")


def future_of(call: PendingCall, decode: Callable[[PendingCall], None]) -> Future[None]:
    """The future of a pending call; `decode` raises if the call was filled with a failure."""
    return new_future(call, decode)


def done() -> Future[None]:
    """A future that is done."""
    return done_future(None)


def failed(error: BaseException) -> Future[None]:
    """A future that raises `error`."""
    return failed_future(error)


def notify(port: Port[Any], value: object) -> Notify:
    """The port, for one message that native code sends; `RuntimeError` if its only message was sent."""
    target = port.__core__
    target.claim()
    return (target.proc, target.to, target.is_call, target.rank, port.return_undeliverable, value)
