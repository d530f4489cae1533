"""Meshes that arrive in messages: one `MeshInfo` per process and mesh, and the routes to its processes."""

from __future__ import annotations

from monarch._core.call.answer import proc_ended_failure
from monarch._core.call.orphan import watch_owner
from monarch._core.call.runs import each_of
from monarch._core.process.mesh_info import MeshInfo
from monarch._core.shape.shape import Extent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from monarch._core.process.ends import ProcEnds
    from monarch._core.process.process import LocalProcess


def reach(process: LocalProcess, job: int, places: list[tuple[int, int]]) -> None:
    """Makes the processes on these hosts reachable for messages."""
    if job in process.peers.services_of:
        # A service is in the job of its agent: its host has a different id in each job that the service serves.
        host, job = process.peers.services_of[job]
        places = [(proc, host) for proc, _ in places]
    here = process.agent_uid if job in (0, process.peers.job) else process.peers.serves.get(job)
    if here is not None:
        elsewhere = [place for place in places if place[1] != here]
        if elsewhere:
            process.peers.ended.route(elsewhere, here)
        return
    # The mesh belongs to another client of this user on this machine. All its hosts are reached through that client.
    process.native.join(job, places)


def received_mesh(process: LocalProcess, state: tuple[Any, ...]) -> MeshInfo:
    """The info of a mesh that arrived in a message: one object per process and mesh."""
    info = process.meshes.known.get(state[0])
    if info is None:
        uid, name, creator, extent, procs, class_name, payload, agents, (owner_proc, owner_agent), job, mailbox = state
        shape = Extent.from_wire(extent)
        info = process.meshes.known[uid] = MeshInfo(
            uid, name, creator, shape, procs, class_name, payload, agents, owner_proc, owner_agent, job, mailbox
        )
        reach(process, job, list(zip(procs, each_of(agents), strict=True)))
        if owner_proc not in (0, process.uid):
            reach(process, job, [(owner_proc, owner_agent)])
            watch_owner(process, info)
        if process.peers.ended:
            mark_ended(info, process.peers.ended)
    return info


def mark_ended(info: MeshInfo, ended: ProcEnds) -> None:
    """Marks ranks whose processes had ended before this process received the mesh, for the first time or again."""
    for rank, proc in enumerate(info.procs):
        if proc in ended:
            info.failed.setdefault(rank, proc_ended_failure(info, rank, ended[proc]))
