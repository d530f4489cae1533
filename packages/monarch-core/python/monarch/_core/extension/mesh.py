"""The interface of wheels that implement methods of meshes, and the properties of a mesh that they need."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from monarch._core.call.actor_mesh import ActorMesh
from monarch._core.call.runs import each_of
from monarch._core.extension.ids import HostId, JobId, ProcId, Rank
from monarch._core.hosts.host_mesh import HostMesh, ProcMesh

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from monarch._core.call.actor_mesh import EndpointCall
    from monarch._core.call.future import Future
    from monarch._core.shape.shape import Extent


class MeshMethods(Protocol):
    """Methods that a wheel implements by entry points of the group `monarch.mesh`; each method is an entry point of its own."""

    def activate(self, procs: ProcMesh, /) -> AbstractContextManager[Any]:
        """For `ProcMesh.activate`."""
        ...

    def hosts_from_config(self, name: str, /) -> HostMesh:
        """For `monarch.actor.hosts_from_config`: the hosts of the current job, else hosts of this machine."""
        ...

    def push_environment(self, hosts: HostMesh, source: str, targets: Sequence[str], /) -> Future[tuple[int, int]]:
        """For `HostMesh.sync_workspace(conda=True)`: makes `targets[rank]` on each host a copy of the client's environment `source`.

        The files of the copy contain their new path. The future has the number of files written on all hosts, and of bytes sent.
        """
        ...

    def rank_tensor(self, procs: ProcMesh, dim: str | Sequence[str], /) -> Any:
        """For `ProcMesh.rank_tensor`."""
        ...

    def rank_tensors(self, procs: ProcMesh, /) -> dict[str, Any]:
        """For `ProcMesh.rank_tensors`."""
        ...

    def to_table(self, procs: ProcMesh, /) -> str:
        """For `ProcMesh.to_table`."""
        ...

    def rref(self, call: EndpointCall, /) -> Any:
        """For `Endpoint.rref`: sends the call, and returns an object that represents its results. `call.propagate` is the endpoint's."""
        ...

    def simulator(self, procs: ProcMesh, /) -> AbstractContextManager[Any]:
        """For `patch_tensor_engine` without a factory."""
        ...


class MeshView(NamedTuple):
    """The members of a mesh. `procs`, `hosts` and `ranks` are in the order of its ranks; `ranks` are those of the spawned mesh."""

    name: str
    job: JobId
    extent: Extent
    procs: tuple[ProcId, ...]
    hosts: tuple[HostId, ...]
    ranks: tuple[Rank, ...]


def host_mesh_number(hosts: HostMesh) -> int:
    """The number of a mesh of hosts, which its slices have too. All processes with a handle see the same number.

    The event `mesh.made` of a mesh of procs has it as the parent.
    """
    return hosts.__core__.number()


def mesh_view(mesh: ProcMesh | ActorMesh | Any) -> MeshView:
    """The members of a mesh of procs or actors, or of a slice of it, without a message. `TypeError` for any other object."""
    if not isinstance(mesh, ProcMesh | ActorMesh):
        raise TypeError(f"mesh_view({mesh!r}): expected a mesh of procs or actors, not {type(mesh).__name__}")
    info = mesh.__core__.info
    ranks = list(mesh.__core__.shape.ranks())
    agents = each_of(info.agents)
    return MeshView(
        info.name,
        JobId(info.job),
        mesh.extent,
        tuple(ProcId(info.procs[r]) for r in ranks),
        tuple(HostId(agents[r]) for r in ranks),
        tuple(Rank(r) for r in ranks),
    )
