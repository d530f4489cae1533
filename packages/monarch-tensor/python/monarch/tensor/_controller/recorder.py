"""What the commands of one call are, for `compile`."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from monarch.tensor._protocol.frames import Site, current_site, frames_of
from monarch.tensor.errors import TensorMeshError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from monarch.tensor._controller.memory import Memory
    from monarch.tensor._controller.place_base import PlaceBase
    from monarch.tensor._protocol.commands import Definition


class Operation(NamedTuple):
    """A command that makes or changes tensors, or moves them."""

    place: PlaceBase
    definition: int
    inputs: tuple[int, ...]
    constants: tuple[Any, ...]
    results: tuple[int, ...]
    site: Site


class Order(NamedTuple):
    """The stream of `then` waits until that of `first` has come here."""

    first: PlaceBase
    then: PlaceBase


class Freed(NamedTuple):
    """Numbers that have died at the place with this head."""

    head: tuple[int, int]
    numbers: list[int]


class Used:
    """Memory from before the call that it uses."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.written = False
        # The tensors by number, as weak references.
        self.tensors: dict[int, weakref.ref[Any]] = {}


class Recorder:
    """Listens to the commands of one call."""

    def __init__(self, place: PlaceBase, formals: Sequence[int]) -> None:
        # The place at which the call begins.
        self.place = place
        # The places of its commands, by their heads; they and their streams live as long as the recording.
        self.places: dict[tuple[int, int], PlaceBase] = {}
        self.formals = tuple(formals)
        self.log: list[Operation | Order | Freed] = []
        self.made: set[int] = set()
        # Tensors that it uses without getting them as arguments, and their places.
        self.captured: dict[int, PlaceBase] = {}
        self.used: dict[Memory, Used] = {}
        # Written memory with a number that the controller knew: a replay writes other numbers.
        self.known: list[Memory] = []
        # The `Borrow`s that begin in the call, and end there.
        self.borrows: set[Any] = set()
        # Numbers from before the call that it has computed with, and numbers on which a number depends that its Python code has read: a
        # replay is valid while these are unchanged.
        self._computed_with: list[tuple[Memory, Any]] = []
        self.numbers_read: list[tuple[Memory, Any]] = []
        self._place_of: dict[int, PlaceBase] = {}

    def use(self, tensor: Any, written: bool) -> None:
        """Takes note of an operand."""
        handle = tensor.__core__
        self._place_of[handle.id] = handle.place
        found = self.used.get(handle.memory)
        if found is None:
            if handle.id in self.made:
                return
            found = self.used[handle.memory] = Used(handle.memory)
        found.written |= written
        if handle.id not in self.made:
            found.tensors[handle.id] = weakref.ref(tensor)

    def compute_with(self, memory: Memory) -> None:
        """Takes note of a known number among the operands of a command."""
        was_there = not self.made.issuperset(memory.ids())
        if was_there and not any(known is memory for known, _ in self._computed_with):
            self._computed_with.append((memory, memory.value))

    def read(self, memory: Memory) -> None:
        """Takes note of a number that the program gets: from here on, all that were computed with may have decided on the commands."""
        self.compute_with(memory)
        self.numbers_read = self._computed_with

    def record(self, place: PlaceBase, definition: int, inputs: Iterable[int], constants: Sequence[Any], results: Iterable[int]) -> None:
        operation = Operation(place, definition, tuple(inputs), tuple(constants), tuple(results), current_site())
        self.places[place.head] = place
        for number in operation.inputs:
            if number not in self.made and number not in self.formals:
                self.captured[number] = self._place_of.get(number, place)
        self.made.update(operation.results)
        self.log.append(operation)

    def order(self, first: PlaceBase, then: PlaceBase) -> None:
        """Takes note that a stream waits for another one."""
        self.places[first.head], self.places[then.head] = first, then
        self.log.append(Order(first, then))

    def released(self, numbers: list[int], head: tuple[int, int]) -> None:
        """Takes note of what was freed."""
        if own := [n for n in numbers if n in self.made]:
            self.log.append(Freed(head, own))

    def end(self, name: str, knows: Callable[[int], bool]) -> None:
        """Nothing more comes. `knows` is that of the controller.

        `TensorMeshError` for a borrow that is still in force: no replay would begin it.
        """
        if any(not borrow.ended for borrow in self.borrows):
            raise TensorMeshError(f"compile({name}): a borrow that began in the recorded call has not ended there (`Borrow.drop`)")
        # They keep the borrowed tensors.
        self.borrows.clear()
        for operation in self.operations():
            if not knows(operation.definition):
                frames = frames_of(operation.site)
                raise TensorMeshError(
                    f"compile({name}): an operation{f' at {frames[0]}' if frames else ''} has arguments that cannot be compared with those "
                    "of another call: do it outside of the function"
                )

    @property
    def is_elsewhere(self) -> bool:
        """Whether it has commands in another stream, or on another part of the mesh, than where it begins."""
        return any(place is not self.place for place in self.places.values())

    def operations(self) -> list[Operation]:
        return [entry for entry in self.log if isinstance(entry, Operation)]

    def normal(self) -> list[Any]:
        """The operations with numbers that two calls have in common."""
        names: dict[int, Any] = {number: ("argument", i) for i, number in enumerate(self.formals)}
        found: list[Any] = []
        for entry in self.operations():
            inputs = tuple(names.get(n, n) for n in entry.inputs)
            for number in entry.results:
                names[number] = ("result", len(names))
            found.append((entry.definition, entry.place.head, inputs, tuple(map(comparable, entry.constants))))
        return found

    def orders(self) -> list[Any]:
        """Where streams wait for each other: after how many operations, and which ones."""
        found: list[Any] = []
        count = 0
        for entry in self.log:
            if isinstance(entry, Operation):
                count += 1
            elif isinstance(entry, Order):
                found.append((count, entry.first.head, entry.then.head))
        return found


def comparable(value: Any) -> Any:
    """The same for equal values of two calls."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), repr(value.tolist())
    # Zeros of both signs are equal, and NaN is equal to NaN.
    return repr(value) if isinstance(value, float | complex) else value


def compare(name: str, definition: Callable[[int], Definition], first: Recorder, second: Recorder) -> None:
    """`TensorMeshError` with the first difference between two calls. `definition` is that of the controller."""
    ones, others = first.normal(), second.normal()
    operations = second.operations()
    for i, (one, other) in enumerate(zip(ones, others, strict=False)):
        if one != other:
            frames = frames_of(operations[i].site)
            at = f" at {frames[0]}" if frames else ""
            was, now = definition(one[0]).name, definition(other[0]).name
            what = f"{was} was recorded, and {now} came" if was != now else f"{was} was recorded with other operands or values"
            if was == now and one[1] != other[1]:
                what = f"{was} was recorded on another mesh or stream"
            raise TensorMeshError(f"compile({name}): its second call differs from the recording in operation {i}{at}: {what}")
    if len(ones) != len(others):
        raise TensorMeshError(f"compile({name}): {len(ones)} operations were recorded, and its second call had {len(others)}")
    if first.orders() != second.orders():
        raise TensorMeshError(
            f"compile({name}): the streams of its second call wait for each other in another order than the recorded ones"
        )
