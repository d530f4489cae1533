"""Answers that are errors: how they are made where they happen, and what they become at the caller."""

from __future__ import annotations

import marshal

from monarch._core._native import Process as NativeProcess
from monarch._core.errors import ActorError, ExitReason, MeshFailure, actor_call_failed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from monarch._core._native import Result
    from monarch._core.mesh_info import MeshInfo


def pack_error(exc: BaseException, display: str, pid: int, host: str) -> bytes:
    """An exception as the body of an answer."""
    from monarch._core.remote_exception import pack_exception

    return marshal.dumps((pack_exception(exc), display, pid, host))


def actor_error(result: Result, mesh: str, method: str) -> ActorError:
    packed, display, pid, host = marshal.loads(result.raw())
    return ActorError._received(packed, actor_call_failed(mesh, method), display, pid, host)


def exit_reason(end: tuple[Any, ...]) -> ExitReason:
    """The reason of a process's end, from the native side's description."""
    _, _, _, kind, number, detail, core, _ = end
    if kind == "exit_code":
        return ExitReason("exit_code", code=number)
    if kind == "signal":
        return ExitReason("signal", signal=number, core_dumped=core)
    if kind == "oom":
        return ExitReason("oom", signal=number, detail=detail)
    if kind == "stopped":
        detail = plain_reason(detail)
    return ExitReason(kind, detail=detail or None)


def plain_reason(reason: str) -> str:
    parts = reason.split("\n", 2)
    return parts[2] if len(parts) == 3 else reason


def proc_ended_failure(info: MeshInfo, rank: int, body: bytes | tuple[Any, ...]) -> MeshFailure:
    """The failure of a rank whose process has ended."""
    end = NativeProcess.decode_end(body) if isinstance(body, bytes) else body
    from monarch._core.process import host_name

    pid, _, host, *_, output = end
    return MeshFailure(
        actor=info.display(rank),
        reason=exit_reason(end),
        mesh_name=info.unique_name,
        name=info.name,
        crashed_ranks=[rank],
        # An agent that is gone has not said where it was; other clients' agents are met on this host only.
        host=host or host_name(),
        # Of procs of a host that is lost nobody has said it.
        pid=pid or None,
        output=output,
    )


def received_failure(body: bytes, info: MeshInfo, rank: int) -> MeshFailure:
    """The failure in an answer."""
    if body:
        return MeshFailure.from_wire(body)
    # The process that it was in has seen many come and go since.
    return MeshFailure(
        actor=info.display(rank),
        reason=ExitReason("stopped", detail="it ended long ago, and why is not kept"),
        mesh_name=info.unique_name,
        name=info.name,
        crashed_ranks=[rank],
    )
