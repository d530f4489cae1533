"""Methods of tensors, for all tensors of a pytree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monarch.tensor._tensors.dispatch import map_tensors
from monarch.tensor._tensors.mesh import DeviceMesh, MeshSliceTensor, Stream, mesh_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monarch.actor import ProcMesh
    from monarch.tensor._tensors.reductions import Reduction


def to_mesh(tensors: Any, mesh: DeviceMesh | ProcMesh, stream: Stream | None = None) -> Any:
    """Each tensor of a pytree, and each `slice_mesh` of one, on another mesh, as a copy.

    Dimensions of the same name have the same size, and their ranks send to each other; a dimension that the tensor's mesh lacks is
    broadcast.

    Args:
        tensors: a tensor, or a pytree with tensors.
        mesh: the mesh of the copies.
        stream: the stream of the copies; by default that of each tensor.

    Returns:
        The pytree with new tensors.

    Raises:
        ValueError: the size of a dimension differs, or `mesh` lacks a dimension of the tensor's mesh.

    ```python
    import torch

    from monarch.actor import this_host
    from monarch.tensor import inspect, slice_mesh, to_mesh

    procs = this_host().spawn_procs({"dp": 2})
    with procs.activate() as mesh:
        first = slice_mesh(torch.ones(2) + mesh.rank("dp"), dp=0)
        assert inspect(to_mesh(first, mesh), dp=1).tolist() == [1.0, 1.0]
    procs.stop().get()
    ```
    """
    target = mesh_of(mesh)

    return map_tensors("to_mesh", tensors, lambda t: t.to_mesh(target, stream), MeshSliceTensor)


def slice_mesh(tensors: Any, **coords: int | slice) -> Any:
    """Each tensor of a pytree on a part of its mesh, for `to_mesh` of it."""
    return map_tensors("slice_mesh", tensors, lambda t: t.slice_mesh(**coords))


def reduce(
    tensors: Any, dims: str | Sequence[str] = (), reduction: Reduction = "sum", scatter: bool = False, mesh: DeviceMesh | None = None
) -> Any:
    """Each tensor of a pytree, combined over dimensions of its mesh.

    | call | collective | result for a tensor of shape `s` on `n` ranks along the dimension |
    |---|---|---|
    | `reduce(t, d, "sum")` | all-reduce | `s`, the same on all of them |
    | `reduce(t, d, "stack")` | all-gather | `(n, *s)` |
    | `reduce(t, d, "sum", scatter=True)` | reduce-scatter | `s[1:]`, rank `i` has the sum of the parts `t[i]`; `s[0]` is `n` |
    | `reduce(t, d, "stack", scatter=True)` | all-to-all | `s`, rank `i` has the parts `t[i]` of all ranks; `s[0]` is `n` |

    Args:
        tensors: a tensor, or a pytree with tensors.
        dims: the dimensions, all by default; one only for "stack" and for `scatter`.
        reduction: "sum", "avg", "stack", or another reduction of docs/tensors.md.
        scatter: each rank has its own part of the result.
        mesh: a part of the tensor's mesh without those dimensions: the result is on it only.

    Returns:
        The pytree with new tensors.

    Raises:
        KeyError: a dimension is unknown.
        ValueError: a dimension is named twice, the reduction is unknown, or a shape does not fit; the text has the expected one.

    ```python
    import torch

    from monarch.actor import this_host
    from monarch.tensor import inspect, reduce

    procs = this_host().spawn_procs({"dp": 2})
    with procs.activate() as mesh:
        x = torch.ones(3) + mesh.rank("dp")
        assert inspect(reduce(x, "dp", "sum")).tolist() == [3.0, 3.0, 3.0]
    procs.stop().get()
    ```
    """
    return map_tensors("reduce", tensors, lambda t: t.reduce(dims, reduction, scatter, mesh))


def reduce_(
    tensors: Any, dims: str | Sequence[str] = (), reduction: Reduction = "sum", scatter: bool = False, mesh: DeviceMesh | None = None
) -> Any:
    """The same in place."""
    return map_tensors("reduce_", tensors, lambda t: t.reduce_(dims, reduction, scatter, mesh))
