"""Data of mesh tensors, brought to the controller."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch.utils import _pytree

from monarch.actor import SupervisionError
from monarch.extension import promise, when_done
from monarch.tensor._protocol import metrics
from monarch.tensor._protocol.failures import Failure, error_of
from monarch.tensor._tensors.dispatch import check_operands
from monarch.tensor._tensors.mesh import MeshSliceTensor
from monarch.tensor._tensors.tensor_base import TENSOR_TYPES, handle_of

if TYPE_CHECKING:
    from monarch.actor import Future
    from monarch.tensor._controller.place import Place
    from monarch.tensor._tensors.mesh import Tensor

T = TypeVar("T")


def fetch_shard(obj: T, shard: dict[str, int] | None = None, **coords: int) -> Future[T]:
    """The tensors of a pytree as one rank has them, as CPU tensors.

    The values are those of the moment of this call in the program's order, whatever is written to the tensors afterwards.

    Args:
        obj: a tensor, or a pytree with tensors of one mesh and stream.
        shard: the coordinates of the rank, by dimension; those that are not given are 0.
        **coords: the same as keyword arguments.

    Returns:
        A Future of the pytree with local tensors.

    Raises:
        TypeError: the tensors are on several meshes or streams.
        KeyError: a dimension is unknown.
        IndexError: a coordinate is outside of its dimension.
        RemoteException: from the Future: a tensor could not be computed.

    ```python
    import torch

    from monarch.actor import this_host
    from monarch.tensor import fetch_shard

    procs = this_host().spawn_procs({"dp": 2})
    with procs.activate() as mesh:
        x = torch.ones(2) * mesh.rank("dp")
        assert fetch_shard(x, dp=1).get().tolist() == [1.0, 1.0]
    procs.stop().get()
    ```
    """
    leaves, spec = _pytree.tree_flatten(obj)
    tensors = _tensors_of(leaves)
    if not tensors:
        ready = promise("a fetch of no tensors")
        ready.set_result(obj)
        return ready.future
    began = time.perf_counter()
    answer, place = _ask(tensors, shard, coords)
    done = promise(f"the shard of {place.mesh!r}")

    # A failure counts as raised when the future is read.
    when_done(answer, lambda future: done.set_from(lambda: _filled(leaves, spec, _read(place, future, began))))
    return done.future


def inspect(obj: T, shard: dict[str, int] | None = None, **coords: int) -> T:
    """The tensors of a pytree as one rank has them: `fetch_shard`, which this function waits for.

    Args:
        obj: a tensor, or a pytree with tensors of one mesh and stream.
        shard: the coordinates of the rank, by dimension; those that are not given are 0.
        **coords: the same as keyword arguments.

    Returns:
        The pytree with local tensors.

    Raises:
        TypeError, KeyError, IndexError: as for `fetch_shard`.
        RemoteException: a tensor could not be computed.

    ```python
    import torch

    from monarch.actor import this_host
    from monarch.tensor import inspect

    procs = this_host().spawn_procs({"dp": 2})
    with procs.activate():
        assert inspect(torch.arange(3) + 1).tolist() == [1, 2, 3]
    procs.stop().get()
    ```
    """
    leaves, spec = _pytree.tree_flatten(obj)
    tensors = _tensors_of(leaves)
    if not tensors:
        return obj
    began = time.perf_counter()
    answer, place = _ask(tensors, shard, coords)
    return _filled(leaves, spec, _read(place, answer, began))


def show(obj: Any, shard: dict[str, int] | None = None, **coords: int) -> Any:
    """The data of one rank, for notebooks: tensors that have the shape of an image as images, others as text.

    An image is `[3 or 4, height, width]`, or two-dimensional with 8 rows and columns or more, and has values from 0 to 1 or bytes.
    """
    from monarch.tensor._tensors.images import shown

    return shown(inspect(obj, shard, **coords))


def rank_of(place: Place, shard: dict[str, int] | None, coords: dict[str, int]) -> int:
    """The rank at coordinates of the place's mesh; those that are not given are 0."""
    for name in coords.keys() & (shard or {}).keys():
        raise TypeError(f"the coordinate {name!r} is given twice: in `shard` and by its name")
    given = {**(shard or {}), **coords}
    sizes = place.mesh.sizes
    for name, index in given.items():
        if name not in sizes:
            raise KeyError(f"{place.mesh!r} has no dimension {name!r}, only {', '.join(map(repr, sizes)) or 'none'}")
        if not isinstance(index, int) or not 0 <= index < sizes[name]:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise IndexError(f"{name}={index!r} is not in {place.mesh!r}: expected 0 to {sizes[name] - 1}")
    return place.mesh.grid.rank_at(tuple(given.get(name, 0) for name in sizes))


def _tensors_of(leaves: list[Any]) -> list[Tensor]:
    for value in leaves:
        if isinstance(value, MeshSliceTensor):
            raise TypeError(f"fetch_shard: {value!r} is for `to_mesh`. Fetch the tensor itself, from a rank that its coordinates name.")
    return [v for v in leaves if type(v) in TENSOR_TYPES]


def _ask(tensors: list[Tensor], shard: dict[str, int] | None, coords: dict[str, int]) -> tuple[Future[Any], Place]:
    place = handle_of(tensors[0]).place
    check_operands("fetch_shard", tensors, {}, place, autograd=True)
    return place.controller.fetch(place, rank_of(place, shard, coords), [handle_of(t).id for t in tensors]), place


def _read(place: Place, answer: Future[Any], began: float) -> list[torch.Tensor]:
    try:
        found = answer.get()
    except SupervisionError as e:
        raise place.controller.ended(e) from None
    if isinstance(found, Failure):
        raise error_of(found, place.controller.failures)
    metrics.fetch_ms.record((time.perf_counter() - began) * 1e3)
    return found


def _filled(leaves: list[Any], spec: Any, fetched: list[torch.Tensor]) -> Any:
    values = iter(fetched)
    return _pytree.tree_unflatten([next(values) if type(v) in TENSOR_TYPES else v for v in leaves], spec)
