"""What a mesh tensor is without its operators: a handle in the place of data. Modules on which `Tensor` is built use this class."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.graph import increment_version

from monarch.tensor._controller.checks import LOCAL_TENSOR, REMEDIES
from monarch.tensor._controller.memory import DROPPED, Handle, Memory
from monarch.tensor._protocol.layout import Layout, contiguous_layout, mark
from monarch.tensor.errors import TensorMeshError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from monarch.tensor._controller.place import Place
    from monarch.tensor._protocol.commands import Definition
    from monarch.tensor._tensors.mesh import DeviceMesh
    from monarch.tensor._tensors.stream import Stream
    from monarch.tensor._tensors.tensor import Tensor


def needs_data(what: str) -> TensorMeshError:
    return TensorMeshError(
        f"{what} needs the data of a mesh tensor, which are on the workers. Fetch them with `monarch.tensor.inspect`, or `fetch_shard` "
        "without waiting. Work on local data goes inside of `no_mesh.activate()`."
    )


# `Tensor` alone. Modules on which it is built cannot import it, and a look-up costs them less than `isinstance`.
TENSOR_TYPES: set[type] = set()


class TensorBase(torch.Tensor):
    """A tensor on each rank of a mesh: its handle, and the properties that the handle has. `Tensor` is the one subclass."""

    # A slot instead of a dictionary entry: it is read for each operand.
    __slots__ = ("_handle",)
    _handle: Handle

    # Functions of torch take it as any tensor: only operators are intercepted, below autograd.
    __torch_function__ = torch._C._disabled_torch_function_impl

    def __init_subclass__(cls) -> None:
        global _tensor_type
        _tensor_type = cls
        TENSOR_TYPES.add(cls)

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


_tensor_type: type[TensorBase] = TensorBase
_wrapper: Callable[..., Any] = torch.Tensor._make_wrapper_subclass
_throws: Callable[[Any], None] = torch._C._set_throw_on_mutable_data_ptr
_data: Any = torch.Tensor.data
# Gives a tensor the sizes, strides and type of another one; for autograd it stays the same tensor.
set_data: Callable[[Any, Any], None] = _data.__set__


def new_tensor(handle: Handle) -> Tensor:
    """The tensor for a handle."""
    layout = handle.layout
    made: Any = _wrapper(_tensor_type, *layout.wrapper_arguments)
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
    if type(value) not in TENSOR_TYPES:
        if isinstance(value, torch.Tensor):
            raise TypeError(f"LOCAL_TENSOR: {REMEDIES[LOCAL_TENSOR]}")
        raise TypeError(f"expected a tensor of a mesh, not {type(value).__name__}")
    return value._handle


def is_mesh_tensor(value: Any) -> bool:
    return type(value) in TENSOR_TYPES


def scalar_layout() -> Layout:
    """Of an integer without dimensions on the CPU."""
    return contiguous_layout((), torch.int64, torch.device("cpu"))


def emit_new(place: Place, definition: Definition, inputs: Sequence[int], layout: Layout, constants: Sequence[Any] = ()) -> Tensor:
    """Sends a command that makes one tensor, and gives that. Equal definitions are sent once."""
    controller = place.controller
    number = next(controller.numbers)
    controller.emit(place, controller.defined(definition), inputs, constants, (number,))
    return new_tensor(Handle(number, layout, Memory(), place))
