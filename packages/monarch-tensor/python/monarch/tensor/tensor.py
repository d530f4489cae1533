"""The tensor of a mesh: shape, type and place on the controller, and data on the workers."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import torch
from torch.autograd.graph import increment_version

from monarch.tensor.above import above
from monarch.tensor.checks import LOCAL_TENSOR, REMEDIES
from monarch.tensor.errors import TensorMeshError
from monarch.tensor.layout import Layout, contiguous_layout, mark
from monarch.tensor.memory import DROPPED, Handle, Memory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from monarch.actor import ProcMesh
    from monarch.tensor.commands import Definition
    from monarch.tensor.mesh import DeviceMesh
    from monarch.tensor.place import Place
    from monarch.tensor.stream import Stream

Reduction = Literal["stack", "sum", "avg", "product", "min", "max", "band", "bor", "bxor"]


def needs_data(what: str) -> TensorMeshError:
    return TensorMeshError(
        f"{what} needs the data of a mesh tensor, which are on the workers. Fetch them with `monarch.tensor.inspect`, or `fetch_shard` "
        "without waiting. Work on local data goes inside of `no_mesh.activate()`."
    )


def _binary(function: Callable[..., Any], reflected: bool = False) -> Callable[..., Any]:
    """An operator of Python. Torch's own ones turn each `TypeError` into one that names no culprit."""

    def call(self: Any, other: Any) -> Any:
        if not isinstance(other, torch.Tensor | int | float | complex):
            return NotImplemented
        return function(other, self) if reflected else function(self, other)

    return call


def _divided(one: Any, other: Any) -> Any:
    return other.reciprocal() * one


class Tensor(torch.Tensor):
    """A tensor on each rank of a mesh. Operators on it are commands to the workers; its data come to the controller by a fetch only."""

    # A slot instead of a dictionary entry: it is read for each operand.
    __slots__ = ("_handle",)
    _handle: Handle

    # Functions of torch take it as any tensor: only operators are intercepted, below autograd.
    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        # This is outside of every activation: a mode would have come first.
        outside = above("dispatch", "outside")

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

    @property
    def mesh(self) -> DeviceMesh:
        """The ranks that have it."""
        return self._handle.place.mesh

    @property
    def stream(self) -> Stream:
        """The stream in whose order it is used."""
        return self._handle.place.stream

    @property
    def dropped(self) -> bool:
        """Whether `drop` of it, or of a view of it, has freed its memory."""
        return self._handle.memory.state == DROPPED

    def drop(self) -> None:
        """Frees the memory of this tensor and of all its views on the workers, after the commands so far. A second call does nothing."""
        check_operands = above("dispatch", "check_operands")
        from monarch.tensor.frames import current_site

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
        mesh_of = above("mesh", "mesh_of")
        moved = above("moves", "moved")

        return moved(self, self.mesh, mesh_of(mesh), stream)

    def slice_mesh(self, **coords: int | slice) -> Any:
        """This tensor on a part of its mesh only, for `to_mesh`."""
        MeshSliceTensor = above("moves", "MeshSliceTensor")

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
        reduce_tensor = above("reductions", "reduce_tensor")

        return reduce_tensor(self, dims, reduction, scatter, mesh, out, False)

    def reduce_(
        self, dims: str | Sequence[str] = (), reduction: Reduction = "sum", scatter: bool = False, mesh: DeviceMesh | None = None
    ) -> Tensor:
        """The same in place; `ValueError` where the result has another shape."""
        reduce_tensor = above("reductions", "reduce_tensor")

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
        return _data.__get__(self)

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
        pickled = above("endpoints", "pickled")

        return pickled(self)


def _attributes(tensor: Tensor) -> dict[str, Any]:
    return {name: value for name, value in vars(tensor).items() if name != "_handle"}


_wrapper: Callable[..., Any] = torch.Tensor._make_wrapper_subclass
_throws: Callable[[Any], None] = torch._C._set_throw_on_mutable_data_ptr
_data: Any = torch.Tensor.data
# Gives a tensor the sizes, strides and type of another one; for autograd it stays the same tensor.
set_data: Callable[[Any, Any], None] = _data.__set__


def new_tensor(handle: Handle) -> Tensor:
    """The tensor for a handle."""
    layout = handle.layout
    made: Tensor = _wrapper(Tensor, *layout.wrapper_arguments)
    # Code that reads the data of a tensor without its class, such as a capsule of DLPack, gets an error instead of the address 0.
    _throws(made)
    if layout.bits:
        mark(made, layout.bits)
    made._handle = handle
    return made


def count_writes(tensors: Sequence[Tensor]) -> None:
    """For autograd, after what is no operator of torch has written to them: it compares the versions of what it has saved."""
    if tracked := [t for t in tensors if not t.is_inference()]:
        increment_version(tracked)


def handle_of(value: Any) -> Handle:
    """That of a mesh tensor. `TypeError` for anything else."""
    if type(value) is not Tensor:
        if isinstance(value, torch.Tensor):
            raise TypeError(f"LOCAL_TENSOR: {REMEDIES[LOCAL_TENSOR]}")
        raise TypeError(f"expected a tensor of a mesh, not {type(value).__name__}")
    return value._handle


def is_mesh_tensor(value: Any) -> bool:
    return type(value) is Tensor


def scalar_layout() -> Layout:
    """Of an integer without dimensions on the CPU."""
    return contiguous_layout((), torch.int64, torch.device("cpu"))


def emit_new(place: Place, definition: Definition, inputs: Sequence[int], layout: Layout, constants: Sequence[Any] = ()) -> Tensor:
    """Sends a command that makes one tensor, and gives that. Equal definitions are sent once."""
    controller = place.controller
    number = next(controller.numbers)
    controller.emit(place, controller.defined(definition), inputs, constants, (number,))
    return new_tensor(Handle(number, layout, Memory(), place))
