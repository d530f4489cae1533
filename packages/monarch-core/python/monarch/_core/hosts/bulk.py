"""What a package that moves large memory needs of this process: who it is, its futures, its settings, and how others ended.

The memory itself is `monarch._core._native.bulk`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from monarch._core._native.bulk import Bulk
from monarch._core.call import mesh_info
from monarch._core.call.future import Future
from monarch._core.config import config
from monarch._core.process.current import current_process, known_process, simulated_process
from monarch._core.process.identity import to_base58
from monarch._core.process.process import BULK, ERROR, FIRST_ERROR, GATHER, OK, LocalProcess

if TYPE_CHECKING:
    from collections.abc import Callable

    from monarch._core._native import CallCell
    from monarch._core.call.port import Port

    Notify = tuple[int, int, bool, int | None, bool, object]


class Member(NamedTuple):
    """This process as a member of a job."""

    uid: int
    job: int
    host: str
    pid: int
    # What its host is called in the job.
    agent: int


def is_simulated() -> bool:
    """This runs in a `Universe`, whose processes have no memory of their own."""
    return simulated_process() is not None


def member() -> Member:
    """This process; the client is started in a script that has none."""
    process = current_process()
    return Member(process.uid, process.job, process.host, process.pid, process.agent_uid)


def is_ending() -> bool:
    """This process is being stopped, or the script has ended."""
    process = known_process()
    return process is None or process.closed


def open_bulk() -> Bulk:
    """The memory that this process shares with others."""
    process = current_process()
    opening, streams = config.seconds("rdma_qp_init_timeout") or 0.0, int(config.value("rdma_tcp_fallback_parallelism"))
    return Bulk(process.native, process.job, _tracer(process), opening, max(streams, 1))


# Processes of other hosts.
_reached: set[int] = set()


def reach(uid: int, agent: int) -> None:
    """The process with this uid is on the host with that agent: from now on it can be asked."""
    process = current_process()
    mesh_info.reach(process, process.job, [(agent, agent), (uid, agent)])
    if uid not in _reached:
        _reached.add(uid)
        # What is on the same machine may never be spoken to otherwise, and then nobody would tell that its host is lost.
        process.native.watch_proc(uid, agent)


def _tracer(process: LocalProcess) -> int:
    """The process that Yama is to be told of: all others of the job on this host are its descendants, or it is one itself."""
    if process.is_client:
        return process.native.zygote_pid() or 0
    try:
        with open(f"/proc/{os.getppid()}/stat") as f:
            # The parent of our zygote is the agent. A name may hold anything, also blanks and brackets.
            return int(f.read().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def display(uid: int, host: str, pid: int) -> str:
    """A process, for people."""
    return f"<{to_base58(uid)}>@{host}:{pid}"


def setting(key: str) -> Any:
    """The effective value of a setting."""
    return config.value(key)


def seconds(key: str) -> float | None:
    """The effective value of a setting that is a duration; None where it is not set."""
    return config.seconds(key)


def cell() -> CallCell:
    """What a future waits for, for `complete`."""
    return current_process().native.cell(FIRST_ERROR, 1, [])


def complete(cell: CallCell, failure: bytes | None) -> None:
    """Fills a cell, from any thread: with nothing, or with what `decode` finds as the error's bytes."""
    cell.complete(0, OK if failure is None else ERROR, failure or b"")


def ask(owner: int, body: bytes) -> CallCell:
    """Asks the Python of another process, or of this one; the answer is a failure as bytes, or a value (`answered`)."""
    native = current_process().native
    cell = native.cell(FIRST_ERROR, 1, [owner])
    native.request(owner, BULK, body, cell.slot)
    return cell


def answered(cell: CallCell) -> bytes | None:
    """The value of an answer that is there; None if it is a failure, or whoever was asked has ended."""
    result = None if cell.error() is not None else cell.result(0)
    return None if result is None else bytes(result.raw())


class Answer(Protocol):
    """Answers a question, once, from any thread: with a failure, or with a value."""

    def __call__(self, failure: bytes | None, value: bytes = b"") -> None: ...


# Given who asks, what was asked, and how to answer; on the housekeeping thread, which must not wait.
_handler: Callable[[int, bytes, Answer], None] | None = None


def on_request(handler: Callable[[int, bytes, Answer], None]) -> None:
    global _handler
    _handler = handler


def handle_request(process: LocalProcess, sender: int, slot: int, body: bytes) -> None:
    def answer(failure: bytes | None, value: bytes = b"") -> None:
        process.native.reply(sender, slot, 0, OK if failure is None else ERROR, value if failure is None else failure)

    if _handler is None:
        answer(b"")
    else:
        _handler(sender, body, answer)


def pending(cell: CallCell, decode: Callable[[CallCell], None]) -> Future[None]:
    """The future of what fills this cell; `decode` raises if that was an error."""
    return Future._of(cell, decode)


def done() -> Future[None]:
    return Future._value(None)


def failed(error: BaseException) -> Future[None]:
    return Future._error(error)


def notify(port: Port[Any], value: object) -> Notify:
    """The port, for one message; `RuntimeError` where it has had its only one."""
    port._claim()
    return (port._proc, port._to, port._slot, port._rank, port.return_undeliverable, value)


def has_ended(uid: int) -> bool:
    """As far as this process has heard."""
    return current_process().native.ended(uid) is not None


def end_of(uid: int) -> CallCell:
    """What is filled when that process ends; look at `has_ended` after this."""
    native = current_process().native
    cell = native.cell(GATHER, 1, [uid])
    native.watch_proc(uid, 0)
    return cell


def exit_reason(uid: int, wait: float) -> tuple[str, str] | None:
    """How a process ended, as a kind and a text; waits so many seconds for the news."""
    from monarch._core.errors.errors import ExitReason, cause

    process = current_process()
    end = process.native.ended(uid)
    if end is None:
        end_of(uid).wait(0, wait)
        end = process.native.ended(uid)
    if end is None:
        return None
    _, _, host, kind, number, detail, core, *_ = end
    code, signal = (number if kind == "exit_code" else None), (number if kind in ("signal", "oom") else None)
    return kind, cause(ExitReason(kind, code, signal, core, detail or None), host=host)
