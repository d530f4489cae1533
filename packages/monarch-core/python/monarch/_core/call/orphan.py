"""References to meshes whose owner's process has ended.

Running actors are notified and fail by themselves. Actors that were not spawned yet may never be: the spawn request was lost when its
owner died, and their mailboxes would keep messages for ever. So each process with a reference watches the owner's process and, at its end,
fails its own calls.
"""

from __future__ import annotations

from monarch._core.errors.failure import ExitReason, MeshFailure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from monarch._core._native.system import ProcessEnd
    from monarch._core.process.mesh_info import MeshInfo
    from monarch._core.process.process import LocalProcess


def watch_owner(process: LocalProcess, info: MeshInfo) -> None:
    """Watches the owner of a mesh, of which this process has got a reference."""
    owner = info.owner_proc
    if not _concerns(process, info):
        return
    end = process.peers.ended.get(owner)
    if end is not None:
        _orphan(process, info, end)
    elif owner not in process.peers.watched and not (process.is_client and info.owner_agent == process.agent_uid):
        process.peers.watched.add(owner)
        process.native.watch_proc(owner, info.owner_agent)


def _concerns(process: LocalProcess, info: MeshInfo) -> bool:
    """Whether to watch the owner. The client is not watched: its end is that of the whole job."""
    return bool(info.class_name) and info.owner_proc not in (0, process.uid, info.job or process.peers.job)


def owner_ended(process: LocalProcess, uid: int, end: ProcessEnd) -> None:
    """Fails the references to meshes whose owner was in the ended process. The end is in `process.peers.ended` before this call."""
    process.peers.watched.discard(uid)
    # Weak references are copied in one step: other threads add to the dictionary.
    for reference in process.meshes.known.valuerefs():
        info = reference()
        if info is not None and info.owner_proc == uid and _concerns(process, info):
            _orphan(process, info, end)


def _orphan(process: LocalProcess, info: MeshInfo, end: ProcessEnd) -> None:
    reason = ExitReason("stopped", detail="its owner has stopped") if end.is_stop else ExitReason("orphaned", detail=info.creator)
    failure = None
    for rank, proc in enumerate(info.procs):
        # The end of the rank's own process is the better reason.
        if proc not in process.peers.ended and rank not in info.failed:
            failure = info.failed[rank] = MeshFailure(
                actor=info.display(rank),
                reason=reason,
                mesh_name=info.unique_name,
                name=info.name,
                crashed_ranks=[rank],
                host=end.host,
                pid=process.peers.pid_of(proc),
            )
    if failure is not None:
        process.native.fail_mesh(info.uid, list(info.procs), failure.to_wire())
