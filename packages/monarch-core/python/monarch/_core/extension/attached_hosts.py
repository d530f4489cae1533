"""Hosts of a mesh as the job that has attached them sees them: which are lost, why, and the end of what runs there."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from monarch._core.call.future import Future
    from monarch._core.errors.errors import AttachError, MonarchError
    from monarch._core.hosts.host_mesh import HostMesh


def explain_loss(hosts: HostMesh, explain: Callable[[], MonarchError | None]) -> None:
    """Sets the function whose error, if there is one, replaces the errors of calls that fail because attached hosts are lost."""
    if hosts.__core__.attachment is not None:
        hosts.__core__.attachment.explain = explain


def explain_failure(hosts: HostMesh, explain: Callable[[AttachError], MonarchError | None]) -> None:
    """Sets the function whose result, if there is one, replaces the error of hosts that have not joined."""
    if hosts.__core__.attachment is not None:
        hosts.__core__.attachment.explain_failure = explain


def lost_hosts(hosts: HostMesh) -> dict[int, str]:
    """The reasons for which this client has lost hosts of an attached mesh, by their ranks in it."""
    native = None if hosts.__core__.attachment is None else hosts.__core__.attachment.process.hosts.native
    lost = {agent: why for agent, _, _, why in native.hosts() if why is not None} if native is not None else {}
    return {rank: lost[agent] for rank, agent in enumerate(hosts.__core__.agents) if agent in lost}


def host_names(hosts: HostMesh) -> dict[int, str]:
    """The names of the machines of attached hosts, by their ranks in the mesh; hosts that have not joined are left out."""
    attachment = hosts.__core__.attachment
    if attachment is None:
        return {}
    names = {agent: one["host"] for agent, one in zip(attachment.ids, attachment.described(), strict=True) if one is not None}
    return {rank: names[agent] for rank, agent in enumerate(hosts.__core__.agents) if agent in names}


def lost_gateway(hosts: HostMesh) -> str | None:
    """The reason for the loss of the gateway to attached hosts; None if it is not lost, or if there is none."""
    native = None if hosts.__core__.attachment is None else hosts.__core__.attachment.process.hosts.native
    gateway = None if native is None else native.route_gateway()
    return None if gateway is None else gateway[2]


def stop_own_procs(hosts: HostMesh) -> Future[None]:
    """Stops the procs that were spawned through this mesh and its copies; the hosts stay ready."""
    return hosts.__core__.stop_with_copies()


def stop_all_procs(hosts: HostMesh) -> Future[None]:
    """Stops all procs that this process has spawned on these hosts, through whichever mesh; the hosts stay ready."""
    return hosts.__core__.stop_procs()
