"""Answers that are errors: their packing in the process of the error, and the exceptions that the caller raises for them."""

from __future__ import annotations

import marshal

from monarch._core._native import Process as NativeProcess
from monarch._core._native.protocol import PROC_ENDED
from monarch._core.errors.errors import received_actor_error
from monarch._core.errors.failure import ExitReason, MeshFailure
from monarch._core.errors.text import actor_call_failed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from monarch._core._native import Result
    from monarch._core._native.system import ProcessEnd
    from monarch._core.errors.errors import ActorError
    from monarch._core.process.mesh_info import MeshInfo
    from monarch._core.process.process import LocalProcess


def pack_error(exc: BaseException, display: str, pid: int, host: str, method: str = "", result_of: Any = None) -> bytes:
    """Packs an exception as the body of an answer. `method` is the endpoint that raised it, `result_of` the function with a bad result."""
    from monarch._core.pickle.remote_exception import pack_exception, pack_result_error

    packed = pack_exception(exc) if result_of is None else pack_result_error(exc, result_of)
    return marshal.dumps((packed, display, pid, host, method))


def pack_plain_error(exc: BaseException) -> bytes:
    """Packs an exception as the body of an answer. The caller raises this exception as it is."""
    from monarch._core.pickle.remote_exception import pack_exception

    return marshal.dumps((pack_exception(exc),))


def endpoint_error(result: Result, mesh: str, method: str) -> BaseException:
    """The exception that the caller raises: an `ActorError` around an exception of the endpoint, or the unchanged exception of a port."""
    packed, *origin = marshal.loads(result.raw())
    if origin:
        return actor_error(result, mesh, method)
    from monarch._core.pickle.remote_exception import unpack_exception

    return unpack_exception(packed)


def actor_error(result: Result, mesh: str, method: str) -> ActorError:
    packed, display, pid, host, _ = marshal.loads(result.raw())
    return received_actor_error(packed, actor_call_failed(mesh, method), display, pid, host)


def report_unread(answer: bytes) -> None:
    """Writes a line about the exception of an endpoint that the caller has not looked at."""
    from monarch._core.errors.complaint import complain
    from monarch._core.errors.text import never_retrieved

    try:
        packed, *origin = marshal.loads(answer)
    except (ValueError, EOFError, TypeError):  # bytes with which a handler of a wheel has failed a request
        return
    # Exceptions of ports, bootstraps and requests of the runtime name no endpoint: no future of a call has them.
    if origin and origin[-1]:
        display, pid, host, method = origin
        complain(never_retrieved(f"{display}.{method}()", packed[0], packed[1], pid, host))


def exit_reason(end: ProcessEnd) -> ExitReason:
    """The `ExitReason` of a process's end."""
    return ExitReason(end.kind, code=end.exit_code, signal=end.signal, core_dumped=end.core_dumped, detail=end.detail or None)


def proc_ended_failure(info: MeshInfo, rank: int, body: bytes | ProcessEnd) -> MeshFailure:
    """The failure of a rank whose process has ended."""
    end = NativeProcess.decode_end(body) if isinstance(body, bytes) else body
    from monarch._core.process.environment import host_name

    host = end.host
    if not host and end.kind == "host_lost":
        from monarch._core.call.lost_host import place_of

        # An agent that has not joined has not reported its host.
        host = place_of(info, rank) or ""
    return MeshFailure(
        actor=info.display(rank),
        reason=exit_reason(end),
        mesh_name=info.unique_name,
        name=info.name,
        crashed_ranks=[rank],
        # An agent that has ended cannot report its host. Agents of other clients run on this host only.
        host=host or host_name(),
        # The pid of a proc on a lost host is unknown.
        pid=end.pid or None,
        output=end.output,
        recent=end.recent,
    )


def bootstrap_failure(process: LocalProcess) -> MeshFailure:
    """The failure of the bootstrap, because of which no actor runs in this proc. The receiver adds the name of the actor."""
    assert process.place.bootstrap_failure is not None
    detail, traceback = process.place.bootstrap_failure
    reason = ExitReason("raised", detail=detail)
    return MeshFailure(actor=process.name, reason=reason, host=process.host, pid=process.pid, traceback=traceback)


def not_spawned_failure(info: MeshInfo, rank: int, result: Result) -> MeshFailure:
    """The failure of a rank that does not exist: its process has ended, could not be set up, or had no thread for the actor."""
    if result.status == PROC_ENDED:
        return proc_ended_failure(info, rank, result.raw())
    failure = MeshFailure.from_wire(result.raw())
    return MeshFailure(
        actor=info.display(rank),
        reason=failure.reason,
        mesh_name=info.unique_name,
        name=info.name,
        crashed_ranks=[rank],
        host=failure.host,
        pid=failure.pid,
        traceback=failure.__core__.traceback,
    )


def received_failure(body: bytes, info: MeshInfo, rank: int) -> MeshFailure:
    """The failure in an answer."""
    if body:
        return MeshFailure.from_wire(body)
    # The process has had many actors since, and its tombstones are limited.
    return MeshFailure(
        actor=info.display(rank),
        reason=ExitReason("stopped", detail="it ended long ago, and why is not kept"),
        mesh_name=info.unique_name,
        name=info.name,
        crashed_ranks=[rank],
    )


def stopped_failure(process: LocalProcess, info: MeshInfo, rank: int, reason: str) -> MeshFailure:
    """The answer of a stopped mesh, in the form of a failure."""
    return MeshFailure(
        actor=info.display(rank),
        reason=ExitReason("stopped", detail=reason),
        mesh_name=info.unique_name,
        name=info.name,
        crashed_ranks=[rank],
        host=process.host,
        pid=process.peers.pid_of(info.procs[rank]),
    )


def spawn_error(info: MeshInfo, rank: int, endpoint: str | None = None) -> BaseException:
    from monarch._core.call.lost_host import why_lost
    from monarch._core.errors.errors import SpawnError
    from monarch._core.errors.failure import cause
    from monarch._core.errors.text import fill, where

    failure = info.failed[rank]
    if (error := why_lost(info, failure)) is not None:
        return error
    place = where(failure.pid, failure.host, failure.reason.signal)
    return SpawnError(
        fill("spawn_failed", mesh=info.name, cause=cause(failure.reason, host=failure.host, mesh=info.name), where=place),
        endpoint,
        failure=failure,
    )
