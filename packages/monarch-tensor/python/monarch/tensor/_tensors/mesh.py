"""Meshes of the ranks that execute torch calls, their streams, and their tensors: three classes that name each other.

The functions that they share are in the other modules of the folder, which know `TensorBase`, handles and places only.
"""

from __future__ import annotations

import itertools
import weakref
from typing import TYPE_CHECKING, Any, cast

from monarch.actor import MeshTrait, ProcMesh
from monarch.tensor._controller.active import active
from monarch.tensor._controller.controllers import controller_of
from monarch.tensor._controller.memory import DROPPED
from monarch.tensor._controller.place import place_of
from monarch.tensor._protocol.commands import Grid, Held, RankOf
from monarch.tensor._protocol.frames import current_site
from monarch.tensor._tensors.activation import MeshActivation, StreamActivation
from monarch.tensor._tensors.actor_arguments import pickled
from monarch.tensor._tensors.borrow import Borrow, borrowed_by
from monarch.tensor._tensors.dispatch import check_operands, outside
from monarch.tensor._tensors.moves import moved
from monarch.tensor._tensors.reductions import Reduction, reduce_tensor
from monarch.tensor._tensors.tensor_base import TensorBase, emit_new, handle_of, scalar_layout
from monarch.tensor.errors import TensorMeshError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from monarch.actor import Shape, Slice
    from monarch.tensor._controller.controller import Controller

_serials = itertools.count()
_group_names = itertools.count(1)

# The most ranks in the text of a mesh.
_SHOWN = 8


class Stream:
    """A sequence of commands of its own, a thread on each worker and, on a GPU, a stream of it.

    The workers end it, and close its process groups, after its last command, once neither the program nor a tensor refers to it.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.serial = next(_serials)

    def __repr__(self) -> str:
        return f"<Stream {self.name}>"

    def activate(self) -> AbstractContextManager[Stream]:
        """Inside, the commands of this thread go to this stream."""
        return StreamActivation(self)

    def borrow(self, t: Tensor, mutable: bool = False) -> tuple[Tensor, Borrow]:
        """`t` for this stream, and the borrow, which `Borrow.drop` or the end of a `with` of it ends.

        This stream waits until the owner's has come here, and the owner's waits, where the borrow ends, until this one has come there.
        `mutable=True` gives it to this stream for itself; else it is read by both. `TypeError` for a tensor that is dropped, or borrowed
        in a way that excludes this one.
        """
        return borrowed_by(self, t, mutable)


main_stream = Stream("main")


def get_active_stream() -> Stream:
    """The stream that is active in this thread: the main one, unless another one was activated by `Stream.activate`."""
    stream: Stream | None = active.stream
    return stream or main_stream


def _checked(stream: Any) -> Any:
    if stream is not None and not isinstance(stream, Stream):
        raise TypeError(f"to_mesh: stream is a Stream, not {stream!r}")
    return stream


class DeviceMesh(MeshTrait):
    """The ranks of a mesh of procs, or of a part of it, as torch calls see them; immutable. Its slices and splits are such meshes too.

    `ProcMesh.activate()` gives the mesh of procs. Inside of an activation, each torch call of this thread is one operation on all ranks.

    ```python
    import torch

    from monarch.actor import this_host
    from monarch.tensor import inspect

    procs = this_host().spawn_procs({"dp": 2})
    with procs.activate() as mesh:
        x = torch.ones(1) + mesh.rank("dp")
        with mesh.slice(dp=1).activate():
            y = torch.zeros(1)
        assert (inspect(x, dp=0).item(), inspect(y).item()) == (1.0, 0.0)
    procs.stop().get()
    ```
    """

    def __init__(self, controller: Controller, labels: Sequence[str], ndslice: Slice) -> None:
        self.controller = controller
        self.__ndslice = ndslice
        self.__labels = tuple(labels)
        self.grid = Grid(self.__labels, ndslice.offset, tuple(ndslice.sizes), tuple(ndslice.strides))
        self.ranks_in_order = self.grid.ranks()
        self.key = self.grid
        # The stream of its calls while no other one is active.
        self.main_stream = main_stream

    @property
    def _ndslice(self) -> Slice:
        return self.__ndslice

    @property
    def _labels(self) -> tuple[str, ...]:
        return self.__labels

    def _new_with_shape(self, shape: Shape) -> DeviceMesh:
        return DeviceMesh(self.controller, shape.labels, shape.ndslice)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeviceMesh) and other.controller is self.controller and other.grid == self.grid

    def __hash__(self) -> int:
        return hash((id(self.controller), self.grid))

    def __repr__(self) -> str:
        parts = [f"{name}={size}" for name, size in self.sizes.items()]
        ranks = self.ranks_in_order
        if len(ranks) < self.controller.size:
            # The ranks distinguish slices of the same sizes.
            shown = [*map(str, ranks)] if len(ranks) <= _SHOWN else [*map(str, ranks[: _SHOWN - 1]), "...", str(ranks[-1])]
            parts.append(f"ranks=[{', '.join(shown)}]")
        return f"DeviceMesh({', '.join(parts)})"

    def activate(self) -> AbstractContextManager[DeviceMesh]:
        """Inside, each torch call of this thread is one operation on all ranks of the mesh.

        `TensorMeshError` inside of an activation of procs that have another controller.
        """
        return MeshActivation(self)

    def rank(self, dims: str | Sequence[str]) -> Tensor:
        """The index of each rank along the dimensions, as an integer tensor without dimensions. `KeyError` for an unknown one."""
        names = self.dims_of(dims)
        place = place_of(self, get_active_stream())
        return emit_new(place, RankOf(self.grid, names), (), scalar_layout())

    @property
    def ranks(self) -> dict[str, Tensor]:
        """`rank` of each dimension, by its name."""
        return {dim: self.rank(dim) for dim in self._labels}

    def process_idx(self) -> Tensor:
        """The rank's place in the mesh, row-major."""
        return self.rank(self._labels)

    def process_group(self, dims: str | tuple[str, ...]) -> RemoteProcessGroup:
        """The group of the ranks that differ in these dimensions only. Remote functions get it as a process group of torch."""
        return RemoteProcessGroup(self, self.dims_of(dims))

    def check(self) -> None:
        """Waits until the workers have executed all commands so far, and raises the first failure that no fetch has raised."""
        self.controller.wait()

    def to_table(self) -> str:
        """The ranks with their coordinates and hosts, as a table in Markdown."""
        labels = list(self._labels)
        hosts = self.controller.hosts
        lines = ["| " + " | ".join(["rank", *labels, "host"]) + " |", "|" + " --- |" * (len(labels) + 2)]
        for rank in self.ranks_in_order:
            place = self.grid.place_of(rank)
            assert place is not None
            lines.append("| " + " | ".join([str(rank), *map(str, place), str(hosts[rank])]) + " |")
        return "\n".join(lines)

    def dims_of(self, dims: str | Sequence[str] | None) -> tuple[str, ...]:
        """The names as a tuple, all if there are none. `KeyError` for an unknown one, `ValueError` for one that is named twice."""
        given: Any = dims
        if given is not None and not (isinstance(given, str | list | tuple) and all(isinstance(d, str) for d in cast("Any", given))):
            raise TypeError(f"{dims!r} names no dimensions: expected a name, or a sequence of names")
        names = (dims,) if isinstance(dims, str) else tuple(dims or self._labels)
        for name in names:
            if name not in self._labels:
                raise KeyError(f"{self!r} has no dimension {name!r}, only {', '.join(map(repr, self._labels)) or 'none'}")
        if len(set(names)) != len(names):
            raise ValueError(f"a dimension of {self!r} is named twice: {', '.join(map(repr, names))}")
        return names


class RemoteProcessGroup:
    """A process group of torch on the workers, for remote functions; made there with its first use."""

    def __init__(self, mesh: DeviceMesh, dims: tuple[str, ...]) -> None:
        self.mesh = mesh
        self.dims = dims
        self.dropped = False
        self.name = f"program-{next(_group_names)}"
        # The meshes with complete groups.
        self._meshes: set[Any] = set()
        self._end = weakref.finalize(self, _drop_group, mesh.controller, self.name)

    def size(self) -> int:
        """The ranks of each group."""
        size = 1
        for dim in self.dims:
            size *= self.mesh.sizes[dim]
        return size

    def drop(self) -> None:
        """Closes it on the workers after the commands so far. A second call does nothing."""
        if not self.dropped:
            self.dropped = True
            self._end()

    def held(self, mesh: DeviceMesh) -> Held:
        """What stands for it in a command to this mesh. `TypeError` after `drop`, `ValueError` for a mesh that has other ranks."""
        if self.dropped:
            raise TypeError(f"{self!r} was dropped")
        if mesh.key not in self._meshes:
            ranks = set(mesh.ranks_in_order)
            own = set(self.mesh.ranks_in_order)
            is_part = self.mesh.controller is mesh.controller and ranks <= own
            if not is_part or not ranks.issuperset(itertools.chain(*map(self._line, ranks))):
                raise ValueError(f"{self!r} has other ranks than {mesh!r}, where the function is called: activate the mesh of the group")
            self._meshes.add(mesh.key)
        return Held("group", (self.mesh.grid, self.dims, self.name))

    def _line(self, rank: int) -> tuple[int, ...]:
        return self.mesh.grid.line(rank, self.dims)

    def __repr__(self) -> str:
        return f"<RemoteProcessGroup {', '.join(self.dims)} of {self.mesh!r}{', dropped' if self.dropped else ''}>"


def _drop_group(controller: Controller, name: str) -> None:
    if controller.failed is None:
        controller.dropped_groups.append(name)
        controller.stir()


def mesh_of(procs: Any) -> DeviceMesh:
    """The mesh of a mesh of procs, whose workers are started with the first one; or the mesh itself."""
    if isinstance(procs, DeviceMesh):
        return procs
    if not isinstance(procs, ProcMesh):
        raise TypeError(f"expected a DeviceMesh or a ProcMesh, not {type(procs).__name__}")
    controller, ndslice = controller_of(procs)
    return DeviceMesh(controller, list(procs.sizes), ndslice)


class Tensor(TensorBase):
    """A tensor on each rank of a mesh. Operators on it are commands to the workers; its data come to the controller by a fetch only."""

    __slots__ = ()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        # This is outside of every activation: a mode would have come first.
        return outside(func, types, args, kwargs or {})

    @property
    def mesh(self) -> DeviceMesh:
        """The ranks that have it."""
        return self.__core__.place.mesh

    @property
    def stream(self) -> Stream:
        """The stream in whose order it is used."""
        return self.__core__.place.stream

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
        return moved(self, self.mesh, mesh_of(mesh), _checked(stream))

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
        return reduce_tensor(self, dims, reduction, scatter, None if mesh is None else mesh_of(mesh), out, False)

    def reduce_(
        self, dims: str | Sequence[str] = (), reduction: Reduction = "sum", scatter: bool = False, mesh: DeviceMesh | None = None
    ) -> Tensor:
        """The same in place; `ValueError` where the result has another shape."""
        return reduce_tensor(self, dims, reduction, scatter, None if mesh is None else mesh_of(mesh), None, True)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return pickled(self)


class MeshSliceTensor:
    """A tensor on a part of its mesh, to be moved."""

    def __init__(self, tensor: Tensor, mesh: DeviceMesh) -> None:
        self.tensor = tensor
        self.mesh = mesh

    def to_mesh(self, mesh: DeviceMesh | ProcMesh, stream: Stream | None = None) -> Tensor:
        """A copy of that part on another mesh: see `monarch.tensor.to_mesh`."""
        return moved(self.tensor, self.mesh, mesh_of(mesh), _checked(stream))

    def __repr__(self) -> str:
        return f"<{self.tensor!r} on {self.mesh!r}>"


class _NoMesh:
    """Inside of `no_mesh.activate()` torch is local, whatever mesh is active outside."""

    def activate(self) -> AbstractContextManager[None]:
        return MeshActivation(None)

    def __repr__(self) -> str:
        return "no_mesh"


no_mesh = _NoMesh()


def get_active_mesh() -> DeviceMesh:
    """The innermost mesh that is active in this thread. `TensorMeshError` if there is none."""
    mesh: DeviceMesh | None = active.mesh
    if mesh is None:
        raise TensorMeshError("no mesh is active in this thread: `with procs.activate():` makes one active")
    return mesh
