"""The methods of core's meshes that this wheel implements: entry points of the group `monarch.mesh`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from monarch.actor import ProcMesh
    from monarch.extension.mesh import EndpointCall
    from monarch.tensor._tensors.mesh import DeviceMesh, Tensor


def activate(procs: ProcMesh) -> AbstractContextManager[DeviceMesh]:
    """For `ProcMesh.activate`: the context manager gives the `DeviceMesh`."""
    from monarch.tensor._tensors.mesh import mesh_of

    return mesh_of(procs).activate()


def rank_tensor(procs: ProcMesh, dim: str | Sequence[str]) -> Tensor:
    from monarch.tensor._tensors.mesh import mesh_of

    return mesh_of(procs).rank(dim)


def rank_tensors(procs: ProcMesh) -> dict[str, Tensor]:
    from monarch.tensor._tensors.mesh import mesh_of

    return mesh_of(procs).ranks


def to_table(procs: ProcMesh) -> str:
    from monarch.tensor._tensors.mesh import mesh_of

    return mesh_of(procs).to_table()


def rref(call: EndpointCall) -> Any:
    from monarch.tensor._functions.endpoints import rref

    return rref(call)


def simulator(procs: ProcMesh) -> AbstractContextManager[Any]:
    from monarch.tensor.simulator.simulator import simulated

    return simulated(procs)
