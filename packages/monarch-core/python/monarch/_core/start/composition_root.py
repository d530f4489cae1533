"""The composition root: functions that higher layers provide to lower ones (`process/provided.py`), each loaded with its first use."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

    from monarch._core.hosts.host_mesh import ProcMesh
    from monarch._core.process.process import LocalProcess
    from monarch._core.start.housekeeping import Housekeeping


def _start_client(uid: int = 0) -> LocalProcess:
    from monarch._core.start.client import start_client

    return start_client(uid)


def _own_proc(process: LocalProcess) -> ProcMesh:
    from monarch._core.hosts.host_mesh import own_proc

    return own_proc(process)


def _received_proc_mesh(*state: Any) -> ProcMesh:
    from monarch._core.hosts.host_mesh import received_proc_mesh

    return received_proc_mesh(*state)


def _spawn_procs(*args: Any) -> ProcMesh:
    from monarch._core.hosts.spawn import spawn_procs

    return spawn_procs(*args)


def _sync_workspace(*args: Any) -> Coroutine[Any, Any, None]:
    from monarch._core.sync.sync import sync_workspace

    return sync_workspace(*args)


def _choose_bulk_transport() -> None:
    from monarch._core.hosts.bulk_transport import choose

    choose()


def _housekeeping(process: LocalProcess) -> Housekeeping:
    from monarch._core.start.housekeeping import Housekeeping

    return Housekeeping(process)


def _prepare_proc(process: LocalProcess, setup: dict[str, Any], rank: int) -> bool:
    from monarch._core.start.proc_main import prepare

    return prepare(process, setup, rank)


PROVIDED = {
    "start_client": _start_client,
    "own_proc": _own_proc,
    "received_proc_mesh": _received_proc_mesh,
    "spawn_procs": _spawn_procs,
    "sync_workspace": _sync_workspace,
    "choose_bulk_transport": _choose_bulk_transport,
    "housekeeping": _housekeeping,
    "prepare_proc": _prepare_proc,
}
