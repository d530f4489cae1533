"""Commands of a controller to its workers, and the batches in which they travel. Knows nothing of torch.

A *definition* describes an operation once, and a *command* refers to it by number:

    definition, inputs..., outputs...                      an operation
    RELEASE, count, tensors...                             entries of the table that are free now
    SIGNAL, event / WAIT, event                            order between two streams

All are integers: numbers of definitions, of entries in the worker's table of tensors, and of events. Values that change from call to call,
such as a learning rate, are the *constants* of a segment, in the order of its commands.
"""

from __future__ import annotations

import copy
import struct
from array import array
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

RELEASE, SIGNAL, WAIT = -1, -2, -3

# A batch of another version is not executed.
_VERSION = 1
_HEAD = 3  # version, segments, numbers that follow the heads of the segments
_SEGMENT_HEAD = 5


class Input(NamedTuple):
    """The place of a tensor in the arguments of a definition."""

    index: int  # pyright: ignore[reportIncompatibleMethodOverride]


class Varying(NamedTuple):
    """The place of a constant in them."""

    index: int  # pyright: ignore[reportIncompatibleMethodOverride]


class Held(NamedTuple):
    """The place of something else that the worker keeps for the controller, such as a process group."""

    kind: str
    key: Any


class Nested:
    """An argument with placeholders in other containers than plain lists, tuples and dictionaries: workers may not know these.

    `value` has a `Slot` for each placeholder, which knows how to copy itself.
    """

    def __init__(self, value: Any) -> None:
        self.value = value

    def filled(self, fill: Callable[[Any], Any]) -> Any:
        """The argument with what `fill` gives for each placeholder."""
        memo: dict[Any, Any] = {_FILL: fill}
        return copy.deepcopy(self.value, memo)


class Packed(NamedTuple):
    """An argument as a pickle, with the memory beside it."""

    pickled: bytes
    parts: tuple[bytes, ...]


class Slot:
    """A placeholder in a `Nested`."""

    def __init__(self, value: Input | Varying | Held) -> None:
        self.value = value

    def __deepcopy__(self, memo: dict[Any, Any]) -> Any:
        return memo[_FILL](self.value)


_FILL = "monarch.tensor"


class Call(NamedTuple):
    """An operator of torch's registry, by name. `keep` are the results that get a number, by their place among all its tensors."""

    operator: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    inputs: int
    constants: int
    keep: tuple[int, ...]
    mutates: tuple[int, ...] = ()
    # The program's default type of floating point numbers, if it is not that of torch.
    default: Any = None

    @property
    def name(self) -> str:
        return self.operator


class Constant(NamedTuple):
    """A tensor that the program had on the controller: the constant of the command."""

    inputs: int = 0
    constants: int = 1
    keep: tuple[int, ...] = (0,)
    mutates: tuple[int, ...] = ()
    name: str = "a tensor of the controller"


class Grid(NamedTuple):
    """The ranks of a mesh in the workers' mesh: an offset, and a size and a stride for each dimension."""

    labels: tuple[str, ...]
    offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    def place_of(self, rank: int) -> tuple[int, ...] | None:
        """The coordinates of a rank; None if it is not in the mesh."""
        left = rank - self.offset
        place = [0] * len(self.sizes)
        if left < 0:
            return None
        for axis in sorted(range(len(self.sizes)), key=lambda a: -self.strides[a]):
            if self.sizes[axis] > 1:
                place[axis] = min(left // self.strides[axis], self.sizes[axis] - 1)
                left -= place[axis] * self.strides[axis]
        return tuple(place) if left == 0 and 0 not in self.sizes else None

    def rank_at(self, place: tuple[int, ...]) -> int:
        return self.offset + sum(i * s for i, s in zip(place, self.strides, strict=True))

    def line(self, rank: int, dims: tuple[str, ...]) -> tuple[int, ...]:
        """The ranks that differ from this one only in these dimensions, the first dimension slowest."""
        place = self.place_of(rank)
        assert place is not None, (self, rank)
        ranks = [rank - sum(place[self.labels.index(d)] * self.strides[self.labels.index(d)] for d in dims)]
        for dim in dims:
            axis = self.labels.index(dim)
            ranks = [r + i * self.strides[axis] for r in ranks for i in range(self.sizes[axis])]
        return tuple(ranks)

    def index_in(self, rank: int, dims: tuple[str, ...]) -> int:
        """The place of a rank in its `line`."""
        return self.line(rank, dims).index(rank)

    def ranks(self) -> tuple[int, ...]:
        ranks = [self.offset]
        for size, stride in zip(self.sizes, self.strides, strict=True):
            ranks = [r + i * stride for r in ranks for i in range(size)]
        return tuple(ranks)


class RankOf(NamedTuple):
    """The index of a rank along dimensions, as an integer tensor without dimensions."""

    grid: Grid
    dims: tuple[str, ...]
    inputs: int = 0
    constants: int = 0
    keep: tuple[int, ...] = (0,)
    mutates: tuple[int, ...] = ()
    name: str = "rank_tensor"


class Reduce(NamedTuple):
    """A collective along dimensions. Input 0 is the tensor, input 1, if there is one, where the result is written.

    `result` are the ranks that have it, if not all; `layout` is (shape, dtype, device) of the tensor and `out_layout` that of the result.
    """

    grid: Grid
    dims: tuple[str, ...]
    reduction: str
    scatter: bool
    in_place: bool
    layout: tuple[Any, ...]
    out_layout: tuple[Any, ...]
    result: tuple[int, ...] | None
    inputs: int
    keep: tuple[int, ...]
    mutates: tuple[int, ...]
    constants: int = 0
    name: str = "reduce"


class Move(NamedTuple):
    """A tensor from the ranks of a mesh to those of another one; `routes` are (source, destination)."""

    routes: tuple[tuple[int, int], ...]
    layout: tuple[Any, ...]
    inputs: int = 1
    constants: int = 0
    keep: tuple[int, ...] = (0,)
    mutates: tuple[int, ...] = ()
    name: str = "to_mesh"


class Offer(NamedTuple):
    """A tensor for ranks of another controller. Its constants are the key, and how many ranks pull it, by the rank that has it."""

    inputs: int = 1
    constants: int = 2
    keep: tuple[int, ...] = ()
    mutates: tuple[int, ...] = ()
    name: str = "to_mesh"


class Pull(NamedTuple):
    """What ranks of another controller offer. Its constants are the key, and (process, host) of the source by the rank that pulls it."""

    layout: tuple[Any, ...]
    inputs: int = 0
    constants: int = 2
    keep: tuple[int, ...] = (0,)
    mutates: tuple[int, ...] = ()
    name: str = "to_mesh"


class Alias(NamedTuple):
    """The same tensor with another number, for another stream."""

    inputs: int = 1
    constants: int = 0
    keep: tuple[int, ...] = (0,)
    mutates: tuple[int, ...] = ()
    name: str = "borrow"


class Hand(NamedTuple):
    """A tensor for another actor of the proc, which takes it by the constant."""

    inputs: int = 1
    constants: int = 1
    keep: tuple[int, ...] = ()
    mutates: tuple[int, ...] = ()
    name: str = "an endpoint"


class Resume(NamedTuple):
    """The stream goes on when the actors have handled the message of a `Hand`, by the constant."""

    inputs: int = 0
    constants: int = 1
    keep: tuple[int, ...] = ()
    mutates: tuple[int, ...] = ()
    name: str = "an endpoint"


class Apply(NamedTuple):
    """A remote function: `function` is a pickle with the memory beside it, or an import path.

    `results` are the layouts of the tensors that it is to return.
    """

    function: tuple[bytes, ...] | str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: tuple[Any, ...]
    name: str
    inputs: int
    constants: int
    keep: tuple[int, ...]
    mutates: tuple[int, ...] = ()


class Unpack(NamedTuple):
    """The tensors of what a remote function has returned, which is input 0; `results` are their layouts."""

    results: tuple[Any, ...]
    name: str
    keep: tuple[int, ...]
    inputs: int = 1
    constants: int = 0
    mutates: tuple[int, ...] = ()


class Replay(NamedTuple):
    """A recorded sequence of commands. Its inputs are `formals`, its results `results`, by the numbers of the recording.

    `code` are its segments as (stream, integers, constants); `captured` are numbers of the table that it uses without owning them.
    """

    code: tuple[tuple[int, tuple[int, ...], tuple[Any, ...]], ...]
    formals: tuple[int, ...]
    results: tuple[int, ...]
    inputs: int
    keep: tuple[int, ...]
    captured: tuple[int, ...] = ()
    constants: int = 0
    mutates: tuple[int, ...] = ()
    name: str = "compile"


Definition = Call | Constant | RankOf | Reduce | Move | Offer | Pull | Alias | Hand | Resume | Apply | Unpack | Replay


class Segment(NamedTuple):
    """Commands of one stream for one set of ranks. `first` is the number of its first operation, counted over the controller's life."""

    stream: int
    target: int
    first: int
    code: list[int]
    constants: list[Any]


# The entries are in the order of a batch: an operation, with the head of its place (the numbers of stream and target), its definition, the
# numbers of its tensors, its constants and its lines; or an opcode with numbers.
Entry = tuple[tuple[int, int], int, "Sequence[int]", "Sequence[int]", "Sequence[Any]", Any] | tuple[tuple[int, int], int, "Sequence[int]"]


def segments_of(entries: list[Entry], first: int) -> tuple[list[Segment], list[Any], int]:
    """The entries as segments, the lines of their operations, of which the first one has this number, and the bytes of their constants."""
    segments: list[Segment] = []
    sites: list[Any] = []
    size = 0
    place: tuple[int, int] | None = None
    code: list[int] = []
    given: list[Any] = []
    for entry in entries:
        if entry[0] is not place:
            place = entry[0]
            code, given = [], []
            segments.append(Segment(*place, first + len(sites), code, given))
        if len(entry) == 6:
            _, definition, inputs, results, constants, site = entry
            code += (definition, *inputs, *results)
            if constants:
                given += constants
                for value in constants:
                    size += getattr(value, "nbytes", 0)
            sites.append(site)
        else:
            _, opcode, numbers = entry
            code += (opcode, len(numbers), *numbers) if opcode == RELEASE else (opcode, *numbers)
    return segments, sites, size


def again(like: Any, values: Iterable[Any]) -> Any:
    """A list or tuple of the same kind with other items."""
    made = list(values)
    if isinstance(like, list):
        return made
    return type(like)(*made) if hasattr(like, "_fields") else tuple(made)


def encode(segments: list[Segment]) -> tuple[bytes, list[Any]]:
    """The integers and the constants of a batch."""
    numbers = [_VERSION, len(segments), sum(len(s.code) for s in segments)]
    constants: list[Any] = []
    for s in segments:
        numbers += (s.stream, s.target, s.first, len(s.code), len(s.constants))
        constants += s.constants
    for s in segments:
        numbers += s.code
    # An array takes four times as long to build from a list.
    return struct.pack(f"{len(numbers)}q", *numbers), constants


def decode(data: bytes, constants: list[Any]) -> list[Segment]:
    """What `encode` was given. `ValueError` for anything else, before a command of it is executed."""
    if len(data) % 8 or len(data) < 8 * _HEAD:
        raise ValueError(f"a batch of {len(data)} bytes is cut off")
    numbers = array("q")
    numbers.frombytes(data)
    version, count, total = numbers[:_HEAD]
    if version != _VERSION:
        raise ValueError(f"a batch of version {version}, where {_VERSION} is known")
    at = _HEAD + count * _SEGMENT_HEAD
    if count < 0 or total < 0 or at + total != len(numbers):
        raise ValueError(f"a batch of {len(numbers)} numbers says that it has {count} segments and {total} numbers in them")
    segments: list[Segment] = []
    used = 0
    for i in range(count):
        stream, target, first, length, values = numbers[_HEAD + i * _SEGMENT_HEAD : _HEAD + (i + 1) * _SEGMENT_HEAD]
        if min(stream, target, first, length, values) < 0 or at + length > len(numbers) or used + values > len(constants):
            raise ValueError(f"segment {i} of a batch has a length outside it")
        segments.append(Segment(stream, target, first, numbers[at : at + length].tolist(), constants[used : used + values]))
        at += length
        used += values
    if at != len(numbers) or used != len(constants):
        raise ValueError(f"a batch has {len(numbers) - at} numbers and {len(constants) - used} constants too many")
    return segments
