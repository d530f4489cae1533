"""A mesh tensor without its mesh: a handle in the place of data. Modules on which `Tensor` is built use this class."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch.autograd.graph import increment_version

from monarch.tensor._controller.checks import LOCAL_TENSOR, REMEDIES
from monarch.tensor._controller.handle import Handle
from monarch.tensor._controller.memory import DROPPED, Memory
from monarch.tensor._protocol.layout import Layout, contiguous_layout, mark
from monarch.tensor._protocol.torch_internals import disabled_torch_function, make_wrapper, refuse_data_pointer
from monarch.tensor.errors import TensorMeshError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from monarch.tensor._controller.place import Place
    from monarch.tensor._protocol.commands import Definition


def needs_data(what: str) -> TensorMeshError:
    return TensorMeshError(
        f"{what} needs the data of a mesh tensor, which are on the workers. Fetch them with `monarch.tensor.inspect`, or `fetch_shard` "
        "without waiting. Work on local data goes inside of `no_mesh.activate()`."
    )


# `Tensor` alone. Modules on which it is built cannot import it, and a look-up costs them less than `isinstance`.
TENSOR_TYPES: list[type[TensorBase]] = []


def _binary(function: Callable[..., Any], reflected: bool = False) -> Callable[..., Any]:
    """An operator of Python. Torch's own ones turn each `TypeError` into one that names no culprit."""

    def call(self: Any, other: Any) -> Any:
        if not isinstance(other, torch.Tensor | int | float | complex):
            return NotImplemented
        return function(other, self) if reflected else function(self, other)

    return call


def _divided(one: Any, other: Any) -> Any:
    return other.reciprocal() * one


class TensorBase(torch.Tensor):
    """A tensor on each rank of a mesh: its handle, operators of Python, and errors in place of data. `Tensor` is the one subclass."""

    # A slot instead of a dictionary entry: it is read for each operand.
    __slots__ = ("__core__",)
    __core__: Handle

    # Functions of torch take it as any tensor: only operators are intercepted, below autograd.
    __torch_function__ = disabled_torch_function

    def __init_subclass__(cls) -> None:
        TENSOR_TYPES.append(cls)

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
    def dropped(self) -> bool:
        """Whether `drop` of it, or of a view of it, has freed its memory."""
        return self.__core__.memory.state == DROPPED

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        grad = ", requires_grad=True" if self.requires_grad else ""
        handle = self.__core__
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
        if self.shape or self.__core__.memory.value is None:
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
        self.__core__ = handle

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
        made.__dict__.update(vars(self))
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
        made.__dict__.update(copy.deepcopy(vars(self), memo))
        return made


_data: Any = torch.Tensor.data
# Gives a tensor the sizes, strides and type of another one; for autograd it stays the same tensor.
set_data: Callable[[Any, Any], None] = _data.__set__


def new_tensor(handle: Handle) -> Any:
    """The `Tensor` for a handle."""
    layout = handle.layout
    made: Any = make_wrapper(TENSOR_TYPES[0], *layout.wrapper_arguments)
    # Code that reads the data of a tensor without its class, such as a capsule of DLPack, gets an error instead of the address 0.
    refuse_data_pointer(made)
    if layout.bits:
        mark(made, layout.bits)
    made.__core__ = handle
    return made


def count_writes(tensors: Sequence[torch.Tensor]) -> None:
    """For autograd, after what is no operator of torch has written to them: it compares the versions of what it has saved."""
    if tracked := [t for t in tensors if not t.is_inference()]:
        increment_version(tracked)


def handle_of(value: Any) -> Handle:
    """That of a mesh tensor. `TypeError` for anything else."""
    if type(value) not in TENSOR_TYPES:
        if isinstance(value, torch.Tensor):
            raise TypeError(f"LOCAL_TENSOR: {REMEDIES[LOCAL_TENSOR]}")
        raise TypeError(f"expected a tensor of a mesh, not {type(value).__name__}")
    return value.__core__


def is_mesh_tensor(value: Any) -> bool:
    return type(value) in TENSOR_TYPES


def scalar_layout() -> Layout:
    """Of an integer without dimensions on the CPU."""
    return contiguous_layout((), torch.int64, torch.device("cpu"))


def emit_new(place: Place, definition: Definition, inputs: Sequence[int], layout: Layout, constants: Sequence[Any] = ()) -> Any:
    """Sends a command that makes one `Tensor`, and gives that. Equal definitions are sent once."""
    controller = place.controller
    number = next(controller.numbers)
    controller.emit(place, controller.defined(definition), inputs, constants, (number,))
    return new_tensor(Handle(number, layout, Memory(), place))
