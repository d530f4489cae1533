"""The tensor of a mesh: shape, type and place on the controller, and data on the workers."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import torch

from monarch.tensor._controller.memory import DROPPED
from monarch.tensor._protocol.frames import current_site
from monarch.tensor._tensors.actor_arguments import pickled
from monarch.tensor._tensors.dispatch import check_operands, outside
from monarch.tensor._tensors.mesh import mesh_of
from monarch.tensor._tensors.moves import MeshSliceTensor, moved
from monarch.tensor._tensors.reductions import reduce_tensor
from monarch.tensor._tensors.tensor_base import TensorBase, handle_of, needs_data, set_data

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from monarch.actor import ProcMesh
    from monarch.tensor._tensors.mesh import DeviceMesh
    from monarch.tensor._tensors.stream import Stream

Reduction = Literal["stack", "sum", "avg", "product", "min", "max", "band", "bor", "bxor"]


def _binary(function: Callable[..., Any], reflected: bool = False) -> Callable[..., Any]:
    """An operator of Python. Torch's own ones turn each `TypeError` into one that names no culprit."""

    def call(self: Any, other: Any) -> Any:
        if not isinstance(other, torch.Tensor | int | float | complex):
            return NotImplemented
        return function(other, self) if reflected else function(self, other)

    return call


def _divided(one: Any, other: Any) -> Any:
    return other.reciprocal() * one


class Tensor(TensorBase):
    """A tensor on each rank of a mesh. Operators on it are commands to the workers; its data come to the controller by a fetch only."""

    __slots__ = ()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        # This is outside of every activation: a mode would have come first.
        return outside(func, types, args, kwargs or {})

    __add__ = __radd__ = _binary(torch.add)
    __sub__, __rsub__ = _binary(torch.sub), _binary(torch.rsub)
    __mul__ = __rmul__ = _binary(torch.mul)
    __truediv__, __rtruediv__ = _binary(torch.div), _binary(_divided, True)
    __floordiv__, __rfloordiv__ = _binary(torch.floor_divide), _binary(torch.floor_divide, True)
    __mod__, __rmod__ = _binary(torch.remainder), _binary(torch.remainder, True)
    __pow__, __rpow__ = _binary(torch.pow), _binary(torch.pow, True)
    __matmul__, __rmatmul__ = _binary(torch.matmul), _binary(torch.matmul, True)
    __and__ = __rand__ = _binary(torch.bitwise_and)
    __or__ = __ror__ = _binary(torch.bitwise_or)
    __xor__ = __rxor__ = _binary(torch.bitwise_xor)
    __lshift__, __rlshift__ = _binary(torch.bitwise_left_shift), _binary(torch.bitwise_left_shift, True)
    __rshift__, __rrshift__ = _binary(torch.bitwise_right_shift), _binary(torch.bitwise_right_shift, True)
    __eq__, __ne__ = _binary(torch.eq), _binary(torch.ne)
    __lt__, __le__ = _binary(torch.lt), _binary(torch.le)
    __gt__, __ge__ = _binary(torch.gt), _binary(torch.ge)
    __iadd__, __isub__ = _binary(torch.Tensor.add_), _binary(torch.Tensor.sub_)
    __imul__, __itruediv__ = _binary(torch.Tensor.mul_), _binary(torch.Tensor.div_)
    __ifloordiv__, __imod__ = _binary(torch.Tensor.floor_divide_), _binary(torch.Tensor.remainder_)
    __ipow__ = _binary(torch.Tensor.pow_)
    __iand__, __ior__ = _binary(torch.Tensor.bitwise_and_), _binary(torch.Tensor.bitwise_or_)
    __ixor__ = _binary(torch.Tensor.bitwise_xor_)
    __hash__ = torch.Tensor.__hash__

    def drop(self) -> None:
        """Frees the memory of this tensor and of all its views on the workers, after the commands so far. A second call does nothing."""
        handle = handle_of(self)
        memory = handle.memory
        if memory.state == DROPPED:
            return
        check_operands("drop", (self,), {}, handle.place, writes=(self,), autograd=True)
        recorder = handle.place.controller.recorder
        if recorder is not None and not recorder.made.issuperset(memory.ids()):
            handle.place.controller.refuse_recording("the drop of a tensor that it has not made")
        memory.state, memory.dropped_at = DROPPED, current_site()
        if handle.place.controller.failed is None:
            handle.place.controller.free(handle.place, memory.ids())

    def to_mesh(self, mesh: DeviceMesh | ProcMesh, stream: Stream | None = None) -> Tensor:
        """A copy on another mesh: dimensions of the same name and size move point to point, those that are missing here are broadcast."""
        return moved(self, self.mesh, mesh_of(mesh), stream)

    def slice_mesh(self, **coords: int | slice) -> Any:
        """This tensor on a part of its mesh only, for `to_mesh`."""
        return MeshSliceTensor(self, self.mesh.slice(**coords))

    def reduce(
        self,
        dims: str | Sequence[str] = (),
        reduction: Reduction = "sum",
        scatter: bool = False,
        mesh: DeviceMesh | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """Combines the tensor over dimensions of its mesh: see `monarch.tensor.reduce`."""
        return reduce_tensor(self, dims, reduction, scatter, mesh, out, False)

    def reduce_(
        self, dims: str | Sequence[str] = (), reduction: Reduction = "sum", scatter: bool = False, mesh: DeviceMesh | None = None
    ) -> Tensor:
        """The same in place; `ValueError` where the result has another shape."""
        return reduce_tensor(self, dims, reduction, scatter, mesh, None, True)

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        grad = ", requires_grad=True" if self.requires_grad else ""
        handle = self._handle
        state = f", {handle.memory.state.lower()}" if handle.memory.state else ""
        where = f"mesh={handle.place.mesh!r}, stream={handle.place.stream.name!r}"
        return f"Tensor(shape={list(self.shape)}, dtype={self.dtype}, device={str(self.device)!r}, {where}{grad}{state})"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        if not spec:
            return repr(self)
        return format(self._number(f"the format {spec!r}"), spec)

    def _number(self, what: str) -> Any:
        """What `item()` gives, for a number that the controller knows."""
        if self.shape or self._handle.memory.value is None:
            raise needs_data(what)
        return self.item()

    def __dlpack__(self, *_: Any, **__: Any) -> NoReturn:
        raise needs_data("DLPack")

    def __dlpack_device__(self) -> NoReturn:
        raise needs_data("DLPack")

    @property
    def data(self) -> Any:
        """A view of which autograd knows nothing. Once it is set to a tensor, this one is a view of that."""
        return torch.Tensor.data.__get__(self)

    @data.setter
    def data(self, value: Any) -> None:
        with torch.no_grad():
            view = value.detach()
        handle = handle_of(view)
        set_data(self, view)
        self._handle = handle

    def tolist(self) -> Any:
        return self._number("tolist()")

    def numpy(self, *, force: bool = False) -> NoReturn:
        raise needs_data("numpy()")

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        raise needs_data("an array of numpy")

    def data_ptr(self) -> NoReturn:
        raise needs_data("data_ptr()")

    def __contains__(self, element: Any) -> NoReturn:
        raise needs_data("`in`")

    def __copy__(self) -> Any:
        with torch.no_grad():
            made = self.detach()
        made.requires_grad_(self.requires_grad)
        made.__dict__.update(_attributes(self))
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if not self.is_leaf:
            raise RuntimeError("a tensor that autograd has computed cannot be copied by deepcopy: detach it first")
        with torch.no_grad():
            made = self.clone()
        made.requires_grad_(self.requires_grad)
        memo[id(self)] = made
        if self.grad is not None:
            made.grad = copy.deepcopy(self.grad, memo)
        # The attributes of the program, and the mark of a parameter.
        made.__dict__.update(copy.deepcopy(_attributes(self), memo))
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        return pickled(self)


def _attributes(tensor: Tensor) -> dict[str, Any]:
    return {name: value for name, value in vars(tensor).items() if name != "_handle"}
