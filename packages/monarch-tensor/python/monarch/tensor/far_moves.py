"""Tensors that go between procs of two controllers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from monarch.tensor.errors import TensorMeshError

if TYPE_CHECKING:
    from monarch.tensor.mesh import DeviceMesh
    from monarch.tensor.stream import Stream
    from monarch.tensor.tensor import Tensor


def moved_far(tensor: Tensor, source: DeviceMesh, target: DeviceMesh, stream: Stream | None) -> NoReturn:
    raise TensorMeshError(f"to_mesh: {source!r} and {target!r} are procs of two controllers: activate a mesh of procs that has both")
