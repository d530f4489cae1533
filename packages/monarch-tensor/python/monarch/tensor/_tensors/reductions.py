"""Tensors combined over dimensions of their mesh."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, get_args

import torch

from monarch.tensor._controller.handle import Handle
from monarch.tensor._controller.memory import Memory
from monarch.tensor._controller.place import place_of
from monarch.tensor._protocol.commands import Reduce
from monarch.tensor._tensors.dispatch import check_operands
from monarch.tensor._tensors.tensor_base import count_writes, handle_of, new_tensor

if TYPE_CHECKING:
    from monarch.tensor._protocol.layout import Layout
    from monarch.tensor._tensors.rank_mesh import RankMesh
    from monarch.tensor._tensors.tensor_base import TensorBase

Reduction = Literal["stack", "sum", "avg", "product", "min", "max", "band", "bor", "bxor"]
REDUCTIONS = get_args(Reduction)
_BITS = ("band", "bor", "bxor")
# Types with which gloo computes: it only moves data of other types.
_GLOO_TYPES = frozenset(
    {
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.complex32, torch.complex64, torch.complex128),
    }
)


def reduce_tensor(
    tensor: TensorBase, dims: Any, reduction: str, scatter: bool, mesh: RankMesh | None, out: TensorBase | None, in_place: bool
) -> Any:
    """`reduce` of one tensor."""
    handle = handle_of(tensor)
    place = handle.place
    named = {"dims": dims, "reduction": reduction, "scatter": scatter} | ({} if out is None else {"out": out})
    check_operands("reduce", (tensor,), named, place, writes=[t for t in (out, tensor if in_place else None) if t is not None])
    source = place.mesh
    names = source.dims_of(dims)
    layout = handle.layout
    shape = reduced_shape(layout, source, names, reduction, scatter)
    target = place
    result: tuple[int, ...] | None = None
    if mesh is not None:
        _check_target(source, names, mesh)
        target = place_of(mesh, place.stream)
        result = mesh.ranks_in_order
    if (in_place or out is not None) and mesh is not None:
        raise ValueError("reduce: the result is on another mesh, and cannot be written to a tensor that is there already")
    if in_place and shape != layout.shape:
        raise ValueError(f"reduce_: the result is {list(shape)}, and cannot be written to a tensor of {list(layout.shape)}")
    if out is not None:
        expected = layout.with_shape(shape)
        given = handle_of(out).layout
        if given.shape != shape or given.dtype != layout.dtype:
            raise ValueError(f"reduce: out is {given.describe()}, expected {expected.describe()}")
    made = layout.with_shape(shape)
    inputs = (handle.id,) if out is None else (handle.id, handle_of(out).id)
    new = not in_place and out is None
    definition = Reduce(
        source.grid,
        names,
        reduction,
        scatter,
        in_place,
        (layout.shape, layout.dtype, layout.device),
        (shape, layout.dtype, layout.device),
        result,
        len(inputs),
        (0,) if new else (),
        () if new else (len(inputs) - 1,),
    )
    controller = place.controller
    if not new:
        controller.emit(place, controller.defined(definition), inputs, (), ())
        written = tensor if in_place else out
        assert written is not None
        handle_of(written).memory.value = None
        count_writes((written,))
        return written
    number = next(controller.numbers)
    controller.emit(place, controller.defined(definition), inputs, (), (number,))
    return new_tensor(Handle(number, made, Memory(), target))


def reduced_shape(layout: Layout, mesh: RankMesh, dims: tuple[str, ...], reduction: str, scatter: bool) -> tuple[int, ...]:
    """The shape of the result. `ValueError` where the reduction is not possible."""
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduce: there is no reduction {reduction!r}, only {', '.join(map(repr, REDUCTIONS))}")
    if len(dims) != 1 and (reduction == "stack" or scatter):
        what = "'stack'" if reduction == "stack" else "scatter=True"
        raise ValueError(f"reduce: {what} goes over one dimension, not over {len(dims)} ({', '.join(dims) or 'none'})")
    if layout.dtype.is_complex and reduction not in ("sum", "avg", "stack"):
        raise ValueError(f"reduce: {reduction!r} of complex numbers ({layout.describe()}) is not defined")
    if layout.dtype.is_floating_point and reduction in _BITS:
        raise ValueError(f"reduce: {reduction!r} is for integers, not for {layout.describe()}")
    if reduction == "avg" and not (layout.dtype.is_floating_point or layout.dtype.is_complex):
        raise ValueError(f"reduce: 'avg' is for floating point numbers, not for {layout.describe()}")
    if reduction != "stack" and layout.device.type == "cpu" and layout.dtype not in _GLOO_TYPES:
        raise ValueError(
            f"reduce: {reduction!r} of {layout.describe()} is not offered on the CPU: convert the tensor to another type first"
        )
    shape = layout.shape
    if scatter:
        size = mesh.sizes[dims[0]]
        if not shape or shape[0] != size:
            expected = [size, *shape[1:]]
            raise ValueError(
                f"reduce: with scatter=True the leading dimension has the size of {dims[0]!r}: expected {expected}, got {list(shape)}"
            )
        return shape if reduction == "stack" else shape[1:]
    if reduction == "stack":
        return (mesh.sizes[dims[0]], *shape)
    return shape


def _check_target(source: RankMesh, dims: tuple[str, ...], target: RankMesh) -> None:
    kept = [label for label in source.sizes if label not in dims]
    if target.controller is not source.controller or list(target.sizes) != kept or any(target.sizes[k] != source.sizes[k] for k in kept):
        wanted = ", ".join(f"{k}={source.sizes[k]}" for k in kept)
        raise ValueError(
            f"reduce: mesh={target!r} is not a part of {source!r} without {', '.join(dims)}: expected the dimensions ({wanted})"
        )
    if not set(target.ranks_in_order) <= set(source.ranks_in_order):
        raise ValueError(f"reduce: mesh={target!r} has ranks that are not in {source!r}")
