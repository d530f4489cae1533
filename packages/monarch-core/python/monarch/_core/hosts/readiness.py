"""Whether the procs of a mesh have started."""

from __future__ import annotations

from monarch._core._native.protocol import ERROR
from monarch._core.process.current import current_process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from monarch._core._native import PendingCall
    from monarch._core.process.mesh_info import MeshInfo


def ready_error(info: MeshInfo, cell: PendingCall, commands: list[str]) -> BaseException | None:
    """The error if the processes of a mesh are not usable; None if they are. `commands` started them."""
    if cell.error() is None:
        return None
    from monarch._core.call.answer import actor_error
    from monarch._core.call.lost_host import why_lost
    from monarch._core.errors.errors import SpawnError
    from monarch._core.errors.failure import cause
    from monarch._core.errors.text import procs_not_started
    from monarch._core.process.root_fault import proc_failure_seen

    missing: list[tuple[str, str, list[str]]] = []
    failure = None
    process = current_process()
    for rank, result in enumerate(cell.results()):
        if result is not None and result.status == 0:
            continue
        # This error also covers procs without an answer so far: the whole mesh is not usable.
        proc_failure_seen(process, info.procs[rank])
        if result is None:
            continue
        if result.status == ERROR:
            return actor_error(result, info.name, "bootstrap")
        from monarch._core.call.answer import proc_ended_failure

        failure = proc_ended_failure(info, result.rank, result.raw())
        if (error := why_lost(info, failure)) is not None:
            return error
        missing.append(
            (
                f"{commands[result.rank]} (proc {result.rank})",
                cause(failure.reason, host=failure.host, mesh=info.name),
                list(failure.__core__.output),
            )
        )
    return SpawnError(procs_not_started(len(info.procs), missing), failure=failure)
