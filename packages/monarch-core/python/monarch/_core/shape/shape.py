"""Labelled n-dimensional index spaces.

A `Shape` labels a `Slice`; an `Extent` is only labels and sizes, row-major from 0; a `Point` is one rank of an extent, whose coordinates
are computed on demand; a `Region` is a shape seen as part of a larger space. All types are immutable and compare by value. Labels of
one space are distinct.
"""

# pyright: reportPrivateUsage=false
from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from monarch._core.shape.slice import NDSlice, Slice, as_index, natural, product, row_major_strides

if TYPE_CHECKING:
    import builtins
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any, TypeVar, overload

    D = TypeVar("D")

__all__ = ["Extent", "NDSlice", "Point", "Region", "Shape", "Slice"]

_WIRE_LIMIT = 1 << 64  # sizes are sent as u64
_DECODED_MAX = 256  # distinct extents cached by `Extent.from_wire`: a process addresses few meshes, but each message names one


def _checked_labels(labels: Iterable[str], ndim: int) -> tuple[str, ...]:
    if isinstance(labels, str):
        raise TypeError(f"expected a sequence of labels, got the string {labels!r}")
    names = tuple(labels)
    for name in names:
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"label {name!r} is not a string")
    if len(names) != ndim:
        raise ValueError(f"{len(names)} labels for {ndim} dimensions: {list(names)}")
    if len(set(names)) != ndim:
        raise ValueError(f"duplicate dimension name in {list(names)}")
    return names


def _quoted(label: str) -> str:
    return '"' + label.replace("\\", "\\\\").replace('"', '\\"') + '"'


def plain_or_quoted(label: str) -> str:
    bare = label.replace("_", "")
    return label if not bare or (bare.isascii() and bare.isalnum()) else _quoted(label)


def _checked_slice(value: Slice) -> Slice:
    if not isinstance(value, Slice):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"expected a Slice, got {type(value).__name__}")
    return value


class Shape:
    """A `Slice` with a label for each dimension.

    `ValueError` if the number of labels is not `slice.ndim`, or a label is repeated.
    """

    __slots__ = ("_extent", "_labels", "_ndslice")

    _extent: Extent | None

    def __init__(self, labels: Iterable[str], slice: Slice) -> None:
        self._ndslice = _checked_slice(slice)
        self._labels = _checked_labels(labels, slice.ndim)
        self._extent = None

    @staticmethod
    def unity() -> Shape:
        """The shape without dimensions: the single rank 0."""
        return Shape((), Slice._of(0, (), ()))

    @staticmethod
    def from_bytes(b: bytes) -> Shape:
        """The inverse of `to_bytes`; `ValueError` if `b` is malformed."""
        numbers: list[int] = []
        data = bytes(b)
        at = 0
        count, at = _take_varint(data, at)
        if count > len(data):
            raise ValueError(f"malformed shape: {count} dimensions in {len(data)} bytes")
        for _ in range(count + 1):
            number, at = _take_varint(data, at)
            numbers.append(number)
        extent = _decode_extent(data[at:])
        if len(extent._labels) != count:
            raise ValueError(f"malformed shape: {count} strides for {len(extent._labels)} labels")
        return Shape(extent._labels, Slice(offset=numbers[0], sizes=extent._sizes, strides=numbers[1:]))

    def to_bytes(self) -> bytes:
        """A compact encoding that `from_bytes` reads."""
        out = bytearray()
        strides = self._ndslice._strides
        for number in (len(strides), self._ndslice._offset, *strides):
            _put_varint(out, number)
        return bytes(out) + self.extent.to_wire()

    @property
    def labels(self) -> list[str]:
        """The label of each dimension."""
        return list(self._labels)

    @property
    def ndslice(self) -> Slice:
        """The ranks."""
        return self._ndslice

    @property
    def extent(self) -> Extent:
        """Labels and sizes, without offset and strides."""
        if self._extent is None:
            self._extent = Extent._of(self._labels, self._ndslice._sizes)
        return self._extent

    @property
    def region(self) -> Region:
        """The same ranks as a `Region`."""
        return Region(self._labels, self._ndslice)

    def _axis(self, label: str) -> int:
        try:
            return self._labels.index(label)
        except ValueError:
            raise ValueError(f"no dimension {label!r} in {self}") from None

    def at(self, label: str, index: int) -> Shape:
        """The shape at one index of a dimension, which is removed; `ValueError` if out of range, `OverflowError` if negative."""
        axis = self._axis(label)
        i = natural(index)
        size = self._ndslice._sizes[axis]
        if i >= size:
            raise ValueError(f"index {i} out of range for dimension {label!r} of size {size}")
        return Shape(self._labels[:axis] + self._labels[axis + 1 :], self._ndslice._drop(axis, i))

    def select(self, label: str, slice: builtins.slice[Any, Any, Any]) -> Shape:
        """The shape restricted along one dimension; `ValueError` if it is unknown, the step is not positive, or nothing is left."""
        axis = self._axis(label)
        chosen = chosen_range(label, self._ndslice._sizes[axis], slice)
        if not chosen:
            raise ValueError(f"empty range {chosen.start}:{chosen.stop}:{chosen.step} for dimension {label!r} of {self}")
        return Shape(self._labels, self._ndslice._narrow(axis, chosen))

    def index(self, /, **coords: int) -> Shape:
        """The shape at these indices; their dimensions are removed. Raises as `at`."""
        shape = self
        for label, i in coords.items():
            shape = shape.at(label, i)
        return shape

    def coordinates(self, rank: int) -> dict[str, int]:
        """Label to index of a rank; `ValueError` if it is not in the shape, `OverflowError` if negative."""
        return dict(zip(self._labels, self._ndslice.coordinates(natural(rank)), strict=True))

    def ranks(self) -> list[int]:
        """All ranks, in row-major order."""
        return list(self._ndslice)

    def __len__(self) -> int:
        return self._ndslice._count

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Shape):
            return NotImplemented
        return self._labels == other._labels and self._ndslice == other._ndslice

    def __hash__(self) -> int:
        return hash((self._labels, self._ndslice))

    def __reduce__(self) -> tuple[Callable[[bytes], Shape], tuple[bytes]]:
        return Shape.from_bytes, (self.to_bytes(),)

    def __str__(self) -> str:
        return "{" + ",".join(f"{label}={size}" for label, size in zip(self._labels, self._ndslice._sizes, strict=True)) + "}"

    def __repr__(self) -> str:
        return f"Shape {{ labels: [{', '.join(map(_quoted, self._labels))}], slice: {self._ndslice!r} }}"


def chosen_range(label: str, size: int, selector: builtins.slice[Any, Any, Any]) -> range:
    if not isinstance(selector, slice):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"expected a slice for dimension {label!r}, got {type(selector).__name__}")
    chosen = range(*selector.indices(size))
    if chosen.step < 0:
        raise ValueError(f"negative step {chosen.step} for dimension {label!r}")
    return chosen


class _Dimensions(Mapping[str, int]):
    # A mapping keyed by the labels of `_labels`, whose subscript raises `ValueError` for others. The class `Mapping` would expect
    # `KeyError`.
    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def _labels(self) -> tuple[str, ...]: ...
        @overload
        def get(self, key: str, /) -> int | None: ...
        @overload
        def get(self, key: str, /, default: int | D) -> int | D: ...

    def get(self, key: str, /, default: Any = None) -> Any:
        """The value of a dimension, or `default` if there is none of that name."""
        return self[key] if key in self._labels else default

    def __contains__(self, label: object) -> bool:
        return label in self._labels

    def __iter__(self) -> Iterator[str]:
        return iter(self._labels)

    def __len__(self) -> int:
        return len(self._labels)


class Extent(_Dimensions):
    """The size of each dimension of a row-major space: a mapping from label to size, in order.

    `ValueError` if the numbers of labels and sizes differ or a label is repeated, `OverflowError` if a size is negative. An unknown label
    raises `ValueError`, as subscript; `get` and `in` do not raise.
    """

    __slots__ = ("_dims", "_labels", "_nelements", "_sizes", "_wire")

    _labels: tuple[str, ...]
    _sizes: tuple[int, ...]
    _nelements: int
    _dims: dict[str, tuple[int, int]] | None
    _wire: bytes | None

    def __init__(self, labels: Iterable[str], sizes: Iterable[int]) -> None:
        self._sizes = tuple([natural(size) for size in sizes])
        self._labels = _checked_labels(labels, len(self._sizes))  # pyright: ignore[reportIncompatibleMethodOverride]
        self._nelements = product(self._sizes)
        self._dims = self._wire = None

    @classmethod
    def _of(cls, labels: tuple[str, ...], sizes: tuple[int, ...]) -> Extent:
        # No checks are needed: the labels and sizes come from a checked shape.
        self = object.__new__(cls)
        self._labels = labels
        self._sizes = sizes
        self._nelements = product(sizes)
        self._dims = self._wire = None
        return self

    @staticmethod
    def from_wire(data: bytes) -> Extent:
        """The inverse of `to_wire`; `ValueError` if `data` is malformed. Equal bytes may give the same object."""
        data = bytes(data)
        extent = _decoded.get(data)
        if extent is None:
            extent = _decode_extent(data)
            if len(_decoded) >= _DECODED_MAX:
                _decoded.clear()
            _decoded[data] = extent
        return extent

    def to_wire(self) -> bytes:
        """Bytes for the wire: the number of dimensions, then each label's length, utf-8 label and size, numbers as LEB128 below 2**64."""
        if self._wire is None:
            out = bytearray()
            _put_varint(out, len(self._labels))
            for label, size in zip(self._labels, self._sizes, strict=True):
                text = label.encode()
                _put_varint(out, len(text))
                out += text
                _put_varint(out, size)
            self._wire = bytes(out)
        return self._wire

    @property
    def labels(self) -> list[str]:
        """The label of each dimension."""
        return list(self._labels)

    @property
    def sizes(self) -> list[int]:
        """The size of each dimension."""
        return list(self._sizes)

    @property
    def nelements(self) -> int:
        """The number of points: the product of the sizes, 1 without dimensions."""
        return self._nelements

    @property
    def region(self) -> Region:
        """The whole space, row-major from 0."""
        return Region(self._labels, Slice.new_row_major(self._sizes))

    def _dimension(self, label: str) -> tuple[int, int]:
        # (stride, size) of a label.
        dims = self._dims
        if dims is None:
            dims = self._dims = dict(zip(self._labels, zip(row_major_strides(self._sizes), self._sizes, strict=True), strict=True))
        try:
            return dims[label]
        except KeyError:
            pass
        if not isinstance(label, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"a dimension is named by a string, not by {label!r}")
        raise ValueError(f"Dimension '{label}' not found")

    def __getitem__(self, label: str) -> int:
        return self._dimension(label)[1]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Extent):
            return NotImplemented
        return self._labels == other._labels and self._sizes == other._sizes

    def __hash__(self) -> int:
        return hash((self._labels, self._sizes))

    def __reduce__(self) -> tuple[type[Extent], tuple[Any, ...]]:
        return Extent, (self._labels, self._sizes)

    def __repr__(self) -> str:
        return "{" + ", ".join(f"{plain_or_quoted(label)}: {size}" for label, size in zip(self._labels, self._sizes, strict=True)) + "}"


class Point(_Dimensions):
    """One element of an extent: a mapping from label to index, in order, so that `**point` names its coordinates.

    `rank` is its row-major position; `ValueError` if it is not below `extent.nelements`, `OverflowError` if negative. An unknown label
    raises `ValueError`, as subscript and in `size`; `get` and `in` do not raise. Without dimensions a point is an empty mapping: false.
    """

    __slots__ = ("_extent", "_rank")

    def __init__(self, rank: int, extent: Extent) -> None:
        if type(rank) is not int:
            rank = as_index(rank)
        try:
            inside = 0 <= rank < extent._nelements
        except AttributeError:
            raise TypeError(f"expected an Extent, got {type(extent).__name__}") from None
        if not inside:
            raise ValueError(f"rank {natural(rank)} out of range for {extent} of {extent._nelements}")
        self._rank = rank
        self._extent = extent

    @property
    def rank(self) -> int:
        """The row-major position in the extent."""
        return self._rank

    @property
    def extent(self) -> Extent:
        """The space this is a point of."""
        return self._extent

    @property
    def _labels(self) -> tuple[str, ...]:
        return self._extent._labels

    def size(self, label: str) -> int:
        """The size of a dimension of the extent; `ValueError` if there is none of that name."""
        return self._extent._dimension(label)[1]

    def __getitem__(self, label: str) -> int:
        stride, size = self._extent._dimension(label)
        return self._rank // stride % size

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Point):
            return NotImplemented
        return self._rank == other._rank and self._extent == other._extent

    def __hash__(self) -> int:
        return hash((self._rank, self._extent))

    def __reduce__(self) -> tuple[type[Point], tuple[int, Extent]]:
        return Point, (self._rank, self._extent)

    def __repr__(self) -> str:
        sizes = zip(self._labels, self._extent.sizes, strict=True)
        shown = [f"'{label}': {self[label]}/{size}" for label, size in sizes]
        return "{" + ", ".join(shown) + "}"


class Region:
    """A labelled hyper-rectangle of the ranks of a possibly larger space."""

    __slots__ = ("_labels", "_slice")

    def __init__(self, labels: Iterable[str], slice: Slice) -> None:
        self._slice = _checked_slice(slice)
        self._labels = _checked_labels(labels, slice.ndim)

    @property
    def labels(self) -> list[str]:
        """The label of each dimension."""
        return list(self._labels)

    def slice(self) -> Slice:
        """The ranks of the larger space."""
        return self._slice

    def as_shape(self) -> Shape:
        """The same ranks as a `Shape`."""
        return Shape(self._labels, self._slice)

    def point_of_base_rank(self, rank: int) -> Point:
        """The point of this region at a rank of the larger space; `ValueError` if it is not in the region, `OverflowError` if negative."""
        base = natural(rank)
        if base not in self._slice:
            raise ValueError(f"base rank {base} is not in {self!r}")
        return Point(self._slice.index(base), Extent._of(self._labels, self._slice._sizes))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Region):
            return NotImplemented
        return self._labels == other._labels and self._slice == other._slice

    def __hash__(self) -> int:
        return hash((self._labels, self._slice))

    def __reduce__(self) -> tuple[type[Region], tuple[Any, ...]]:
        return Region, (self._labels, self._slice)

    def __repr__(self) -> str:
        return f"Region {{ labels: [{', '.join(map(_quoted, self._labels))}], slice: {self._slice!r} }}"


_decoded: dict[bytes, Extent] = {}


def _put_varint(out: bytearray, number: int) -> None:
    if number >= _WIRE_LIMIT:
        raise ValueError(f"{number} does not fit into 64 bits")
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def _take_varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while at < len(data):
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            if number >= _WIRE_LIMIT or (shift and not byte):
                raise ValueError("malformed extent: a number exceeds 64 bits or is padded")
            return number, at
        shift += 7
        if shift >= 70:
            break
    raise ValueError("malformed extent: truncated or endless number")


def _decode_extent(data: bytes) -> Extent:
    count, at = _take_varint(data, 0)
    labels: list[str] = []
    sizes: list[int] = []
    for _ in range(min(count, len(data))):
        length, at = _take_varint(data, at)
        text = data[at : at + length]
        at += length
        size, at = _take_varint(data, at)
        labels.append(text.decode())
        sizes.append(size)
    if at != len(data) or len(sizes) != count:
        raise ValueError(f"malformed extent: {count} dimensions in {len(data)} bytes")
    return Extent(labels, sizes)


def whole_shape(extent: Extent) -> Shape:
    """All of an extent, row-major."""
    return Shape(extent.labels, Slice.new_row_major(extent.sizes))
