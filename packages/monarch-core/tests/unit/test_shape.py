"""Slices, shapes, extents, points and regions, against NumPy arrays of ranks."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monarch._core.shape.shape import Extent, NDSlice, Point, Region, Shape, Slice

LABELS = ("hosts", "gpus", "x", "y")
sizes_lists = st.lists(st.integers(0, 4), max_size=4)
quick = settings(deadline=None, max_examples=100)

STRIDED = Slice(offset=5, sizes=[2, 3], strides=[20, 2])
SINGLE = Slice(offset=4, sizes=[], strides=[])
SHAPE = Shape(["a", "b"], STRIDED)
EXTENT = Extent(["hosts", "gpus"], [2, 8])


@st.composite
def slices(draw: st.DrawFn) -> tuple[Slice, np.ndarray]:
    """A slice of a dense space with random steps and axis order, and its ranks."""
    full = draw(st.lists(st.integers(1, 5), max_size=3))
    ranks = np.arange(int(np.prod(full))).reshape(full)
    keys = tuple(slice(draw(st.integers(0, n)), None, draw(st.integers(1, 3))) for n in full)
    view = ranks[keys].transpose(draw(st.permutations(range(len(full))))) + draw(st.integers(0, 9))
    offset = int(view.flat[0]) if view.size else 0
    real = [int(view.take(1, axis=i).flat[0] - offset) if n > 1 and view.size else 1 for i, n in enumerate(view.shape)]
    return Slice(offset=offset, sizes=view.shape, strides=real), view


class TestSlice:
    @quick
    @given(slices())
    def test_agrees_with_numpy(self, case: tuple[Slice, np.ndarray]) -> None:
        ours, ranks = case
        flat = [int(r) for r in ranks.flat]
        assert list(ours) == flat
        assert len(ours) == ranks.size
        assert ours.ndim == ranks.ndim
        assert [ours.get(i) for i in range(len(flat))] == flat
        assert [ours[i] for i in range(len(flat))] == flat
        assert ours[1:-1] == tuple(flat[1:-1])
        assert ours[::-2] == tuple(flat[::-2])
        for position, rank in enumerate(flat):
            coords = [int(c) for c in np.unravel_index(position, ranks.shape)]
            assert ours.coordinates(rank) == coords
            assert ours.index(rank) == position
            assert ours.nditem(coords) == rank
        for rank in set(range(max(flat, default=0) + 3)) - set(flat):
            assert rank not in ours
            with pytest.raises(ValueError, match="not in slice"):
                ours.index(rank)
        assert pickle.loads(pickle.dumps(ours)) == ours
        assert hash(copy.deepcopy(ours)) == hash(ours)

    @quick
    @given(sizes_lists)
    def test_row_major(self, sizes: list[int]) -> None:
        ours = Slice.new_row_major(sizes)
        assert (ours.offset, ours.sizes) == (0, sizes)
        assert list(ours) == list(range(int(np.prod(sizes))))
        assert pickle.loads(pickle.dumps(ours)) == ours

    @quick
    @given(st.lists(st.integers(0, 40)))
    def test_from_list_covers(self, ranks: list[int]) -> None:
        assert sorted(r for part in Slice.from_list(ranks) for r in part) == sorted(ranks)

    def test_from_list_finds_runs(self) -> None:
        assert Slice.from_list([]) == []
        assert Slice.from_list([7]) == [Slice(offset=7, sizes=[1], strides=[1])]
        assert Slice.from_list([5, 3, 1]) == [Slice(offset=1, sizes=[3], strides=[2])]
        assert Slice.from_list([0, 1, 2, 4, 6, 8]) == [
            Slice(offset=0, sizes=[3], strides=[1]),
            Slice(offset=4, sizes=[3], strides=[2]),
        ]

    def test_text_and_fields(self) -> None:
        ours = Slice.new_row_major([2, 3])
        assert repr(ours) == str(ours) == "Slice { offset: 0, sizes: [2, 3], strides: [3, 1] }"
        assert (STRIDED.offset, STRIDED.sizes, STRIDED.strides, STRIDED.ndim) == (5, [2, 3], [20, 2], 2)
        assert NDSlice is Slice

    def test_equality(self) -> None:
        assert Slice(offset=5, sizes=(2, 3), strides=(20, 2)) == STRIDED
        assert Slice(offset=6, sizes=(2, 3), strides=(20, 2)) != STRIDED
        assert STRIDED != 3

    def test_no_dimensions(self) -> None:
        assert (len(SINGLE), list(SINGLE), SINGLE[0], SINGLE.nditem([]), SINGLE.coordinates(4), SINGLE.index(4)) == (1, [4], 4, 4, [], 0)
        with pytest.raises(ValueError):
            SINGLE.index(5)

    def test_large_is_not_materialised(self) -> None:
        huge = Slice(offset=0, sizes=[2**30, 2**20], strides=[2**21, 1])
        assert len(huge) == 2**50
        assert next(iter(huge)) == 0
        assert huge[2**50 - 1] == huge.nditem([2**30 - 1, 2**20 - 1])

    @pytest.mark.parametrize("bad", [6, 99])
    def test_out_of_range(self, bad: int) -> None:
        with pytest.raises(IndexError):
            STRIDED[bad]
        with pytest.raises(ValueError):
            STRIDED.get(bad)
        with pytest.raises(ValueError):
            STRIDED.coordinates(bad)

    def test_negative(self) -> None:
        with pytest.raises(OverflowError):
            STRIDED[-1]
        with pytest.raises(OverflowError):
            STRIDED.get(-1)
        with pytest.raises(ValueError):
            STRIDED.index(-1)

    @pytest.mark.parametrize("coords", [[2, 0], [0, 3], [-1, 0], [1], [1, 2, 3], []])
    def test_nditem_refuses(self, coords: list[int]) -> None:
        with pytest.raises(IndexError):
            STRIDED.nditem(coords)

    def test_item_type(self) -> None:
        with pytest.raises(TypeError):
            STRIDED["a"]  # type: ignore[call-overload]

    @pytest.mark.parametrize(
        ("offset", "sizes", "strides", "error"),
        [
            (0, [2], [1, 1], ValueError),
            (-1, [2], [1], OverflowError),
            (0, [-2], [1], OverflowError),
            (0, [2], [-1], OverflowError),
            (0, [2], [0], ValueError),
            (0, [2, 3], [2, 1], ValueError),
            (0, [3, 2], [1, 1], ValueError),
            (0, ["a"], [1], TypeError),
            (0, [1.5], [1], TypeError),
        ],
    )
    def test_constructor_refuses(self, offset: int, sizes: list[int], strides: list[int], error: type[Exception]) -> None:
        with pytest.raises(error):
            Slice(offset=offset, sizes=sizes, strides=strides)

    def test_keywords_only(self) -> None:
        with pytest.raises(TypeError):
            Slice(0, [2], [1])  # type: ignore[misc]


class TestShape:
    def test_fields(self) -> None:
        assert (SHAPE.labels, SHAPE.ndslice, SHAPE.extent) == (["a", "b"], STRIDED, Extent(["a", "b"], [2, 3]))
        assert SHAPE.region == Region(["a", "b"], STRIDED)
        assert (len(SHAPE), SHAPE.ranks()) == (6, [5, 7, 9, 25, 27, 29])
        assert SHAPE.coordinates(27) == {"a": 1, "b": 1}

    def test_text(self) -> None:
        assert str(SHAPE) == "{a=2,b=3}"
        assert repr(SHAPE) == 'Shape { labels: ["a", "b"], slice: Slice { offset: 5, sizes: [2, 3], strides: [20, 2] } }'

    def test_unity(self) -> None:
        unity = Shape.unity()
        assert (unity.labels, len(unity), unity.ranks(), unity.coordinates(0), str(unity)) == ([], 1, [0], {}, "{}")
        assert repr(unity) == "Shape { labels: [], slice: Slice { offset: 0, sizes: [], strides: [] } }"

    def test_at_select_index(self) -> None:
        assert SHAPE.at("a", 1) == Shape(["b"], Slice(offset=25, sizes=[3], strides=[2]))
        assert SHAPE.select("b", slice(1, None)).ranks() == [7, 9, 27, 29]
        assert SHAPE.select("b", slice(None, None, 2)).ranks() == [5, 9, 25, 29]
        assert SHAPE.select("b", slice(-1, None)).ranks() == [9, 29]
        assert SHAPE.index(a=1, b=0) == Shape([], Slice(offset=25, sizes=[], strides=[]))
        assert SHAPE.index() == SHAPE

    def test_unknown_label(self) -> None:
        for act in (lambda: SHAPE.at("x", 0), lambda: SHAPE.select("x", slice(0, 1)), lambda: SHAPE.index(x=0)):
            with pytest.raises(ValueError, match="'x'"):
                act()

    def test_bad_index(self) -> None:
        for act in (lambda: SHAPE.at("a", 2), lambda: SHAPE.index(a=2), lambda: SHAPE.coordinates(6)):
            with pytest.raises(ValueError):
                act()
        for act in (lambda: SHAPE.at("a", -1), lambda: SHAPE.index(a=-1), lambda: SHAPE.coordinates(-1)):
            with pytest.raises(OverflowError):
                act()

    @pytest.mark.parametrize("bad", [slice(2, 2), slice(5, 9), slice(None, None, -1), slice(0, 2, 0)])
    def test_select_refuses(self, bad: slice) -> None:
        with pytest.raises(ValueError):
            SHAPE.select("b", bad)

    def test_select_wants_a_slice(self) -> None:
        with pytest.raises(TypeError):
            SHAPE.select("b", 1)  # type: ignore[arg-type]

    @pytest.mark.parametrize("labels", [["a"], ["a", "b", "c"], ["a", "a"]])
    def test_labels_must_fit(self, labels: list[str]) -> None:
        with pytest.raises(ValueError):
            Shape(labels, STRIDED)

    @pytest.mark.parametrize(("labels", "ndslice"), [("ab", STRIDED), ([1, 2], STRIDED), (["a"], [1])])
    def test_types(self, labels: list[str], ndslice: Slice) -> None:
        with pytest.raises(TypeError):
            Shape(labels, ndslice)

    @quick
    @given(slices())
    def test_bytes_and_pickle(self, case: tuple[Slice, np.ndarray]) -> None:
        shape = Shape(LABELS[: case[0].ndim], case[0])
        assert Shape.from_bytes(shape.to_bytes()) == shape
        again = pickle.loads(pickle.dumps(shape))
        assert again == shape
        assert hash(again) == hash(shape)

    @quick
    @given(st.binary(max_size=30))
    def test_from_bytes_never_fails_otherwise(self, data: bytes) -> None:
        try:
            shape = Shape.from_bytes(data)
        except ValueError:
            return
        assert shape.to_bytes() == data

    @pytest.mark.parametrize("end", range(len(SHAPE.to_bytes())))
    def test_from_bytes_truncated(self, end: int) -> None:
        with pytest.raises(ValueError):
            Shape.from_bytes(SHAPE.to_bytes()[:end])


class TestExtent:
    def test_is_a_mapping(self) -> None:
        assert isinstance(EXTENT, Mapping)
        assert dict(EXTENT) == {"hosts": 2, "gpus": 8}
        assert list(EXTENT.items()) == [("hosts", 2), ("gpus", 8)]
        assert (list(EXTENT.keys()), list(EXTENT.values()), len(EXTENT)) == (["hosts", "gpus"], [2, 8], 2)
        assert (EXTENT.get("gpus"), EXTENT.get("x"), EXTENT.get("x", 7)) == (8, None, 7)
        assert "hosts" in EXTENT
        assert "x" not in EXTENT

    def test_fields(self) -> None:
        assert (EXTENT.labels, EXTENT.sizes, EXTENT.nelements) == (["hosts", "gpus"], [2, 8], 16)
        assert EXTENT.region == Region(["hosts", "gpus"], Slice.new_row_major([2, 8]))
        assert Extent([], []).nelements == 1
        assert Extent(["a"], [0]).nelements == 0

    def test_text(self) -> None:
        assert repr(EXTENT) == str(EXTENT) == "{hosts: 2, gpus: 8}"
        assert str(Extent([], [])) == "{}"
        assert str(Extent(["a-b", "c_1"], [1, 2])) == '{"a-b": 1, c_1: 2}'

    def test_unknown(self) -> None:
        with pytest.raises(ValueError, match=r"^Dimension 'x' not found$"):
            EXTENT["x"]
        with pytest.raises(TypeError):
            EXTENT[0]  # type: ignore[index]

    def test_equality(self) -> None:
        assert Extent(("hosts", "gpus"), (2, 8)) == EXTENT
        assert hash(Extent(("hosts", "gpus"), (2, 8))) == hash(EXTENT)
        assert Extent(["gpus", "hosts"], [8, 2]) != EXTENT
        assert EXTENT != {"hosts": 2, "gpus": 8}

    @pytest.mark.parametrize(
        ("labels", "sizes", "error"),
        [
            (["a"], [1, 2], ValueError),
            (["a", "a"], [1, 2], ValueError),
            (["a"], [-1], OverflowError),
            ("ab", [1, 2], TypeError),
            ([1], [2], TypeError),
            (["a"], [1.0], TypeError),
        ],
    )
    def test_refuses(self, labels: list[str], sizes: list[int], error: type[Exception]) -> None:
        with pytest.raises(error):
            Extent(labels, sizes)

    def test_immutable(self) -> None:
        for name in ("labels", "sizes", "new"):
            with pytest.raises(AttributeError):
                setattr(EXTENT, name, ())
        EXTENT.labels.append("more")
        assert EXTENT.labels == ["hosts", "gpus"]

    @quick
    @given(st.dictionaries(st.text(max_size=5), st.integers(0, 2**64 - 1), max_size=4))
    def test_wire_and_pickle(self, sizes: dict[str, int]) -> None:
        extent = Extent(list(sizes), list(sizes.values()))
        assert Extent.from_wire(extent.to_wire()) == extent
        assert pickle.loads(pickle.dumps(extent)) == extent

    @quick
    @given(st.binary(max_size=24))
    def test_from_wire_never_fails_otherwise(self, data: bytes) -> None:
        try:
            extent = Extent.from_wire(data)
        except ValueError:
            return
        assert extent.to_wire() == data

    def test_wire_is_small(self) -> None:
        assert Extent([], []).to_wire() == b"\x00"
        assert EXTENT.to_wire() == b"\x02\x05hosts\x02\x04gpus\x08"
        assert Extent(["n"], [300]).to_wire() == b"\x01\x01n\xac\x02"

    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"\x01",
            b"\x01\x05ab\x01",
            b"\x01\x01a",
            b"\x00\x00",
            b"\x01\x01\xff\x01",
            b"\x02\x01a\x01\x01a\x01",
            b"\x01\x01a\x80\x00",
            b"\x01\x01a" + b"\xff" * 9 + b"\x02",
            b"\x01\x01a" + b"\x80" * 40,
            b"\xff\xff\xff\xff\x0f",
        ],
    )
    def test_malformed_wire(self, data: bytes) -> None:
        with pytest.raises(ValueError):
            Extent.from_wire(data)

    def test_too_large_for_the_wire(self) -> None:
        with pytest.raises(ValueError):
            Extent(["a"], [2**64]).to_wire()

    def test_many_distinct_extents_decode(self) -> None:
        for n in range(600):
            assert Extent.from_wire(Extent(["n"], [n]).to_wire()).sizes == [n]


class TestPoint:
    @quick
    @given(sizes_lists)
    def test_agrees_with_numpy(self, sizes: list[int]) -> None:
        extent = Extent(LABELS[: len(sizes)], sizes)
        for rank in range(extent.nelements):
            point = Point(rank, extent)
            coords = [int(c) for c in np.unravel_index(rank, sizes)]
            assert [point[label] for label in extent.labels] == coords
            assert dict(**point) == dict(zip(extent.labels, coords, strict=True))
            assert pickle.loads(pickle.dumps(point)) == point

    def test_is_a_mapping(self) -> None:
        point = Point(9, EXTENT)
        assert isinstance(point, Mapping)
        assert list(point.items()) == [("hosts", 1), ("gpus", 1)]
        assert (point.get("gpus"), point.get("x"), point.get("x", 5)) == (1, None, 5)
        assert ("hosts" in point, "x" in point, len(point)) == (True, False, 2)
        assert (point.rank, point.extent, point.size("gpus")) == (9, EXTENT, 8)

    def test_text(self) -> None:
        point = Point(1, Extent(["hosts", "gpus"], [1, 2]))
        assert repr(point) == str(point) == "{'hosts': 0/1, 'gpus': 1/2}"
        assert str(Point(0, Extent([], []))) == "{}"

    def test_no_dimensions(self) -> None:
        point = Point(0, Extent([], []))
        assert (dict(point), len(point), point.rank) == ({}, 0, 0)
        with pytest.raises(ValueError):
            Point(1, Extent([], []))

    def test_unknown(self) -> None:
        with pytest.raises(ValueError, match=r"^Dimension 'x' not found$"):
            Point(0, EXTENT)["x"]
        with pytest.raises(ValueError, match=r"^Dimension 'x' not found$"):
            Point(0, EXTENT).size("x")

    def test_equality(self) -> None:
        assert Point(9, EXTENT) == Point(9, Extent(["hosts", "gpus"], [2, 8]))
        assert len({Point(9, EXTENT), Point(9, EXTENT), Point(8, EXTENT)}) == 2
        assert Point(9, EXTENT) != Point(9, Extent(["a", "b"], [2, 8]))
        assert Point(9, EXTENT) != {"hosts": 1, "gpus": 1}

    @pytest.mark.parametrize(
        ("rank", "extent", "error"),
        [
            (16, EXTENT, ValueError),
            (-1, EXTENT, OverflowError),
            (0, Extent(["a"], [0]), ValueError),
            ("a", EXTENT, TypeError),
            (1.0, EXTENT, TypeError),
            (0, 3, TypeError),
        ],
    )
    def test_refuses(self, rank: int, extent: Extent, error: type[Exception]) -> None:
        with pytest.raises(error):
            Point(rank, extent)

    def test_numpy_rank_becomes_int(self) -> None:
        assert type(Point(np.int64(3), EXTENT).rank) is int  # type: ignore[arg-type]

    def test_immutable(self) -> None:
        for name in ("rank", "extent", "new"):
            with pytest.raises(AttributeError):
                setattr(Point(0, EXTENT), name, 1)

    def test_points_share_their_extent_in_a_pickle(self) -> None:
        several = pickle.loads(pickle.dumps([Point(i, EXTENT) for i in range(3)]))
        assert several[0].extent is several[2].extent


class TestRegion:
    def test_fields(self) -> None:
        region = Region(["a", "b"], STRIDED)
        assert (region.labels, region.slice(), region.as_shape()) == (["a", "b"], STRIDED, SHAPE)
        assert "a" in repr(region)

    def test_point_of_base_rank(self) -> None:
        region = Region(["a", "b"], STRIDED)
        assert region.point_of_base_rank(27) == Point(4, Extent(["a", "b"], [2, 3]))
        with pytest.raises(ValueError):
            region.point_of_base_rank(6)
        with pytest.raises(OverflowError):
            region.point_of_base_rank(-1)

    def test_equality_and_pickle(self) -> None:
        region = Region(["a", "b"], STRIDED)
        assert pickle.loads(pickle.dumps(region)) == region
        assert hash(Region(("a", "b"), STRIDED)) == hash(region)
        assert Region(["a", "c"], STRIDED) != region
        assert region != 3

    def test_labels_must_fit(self) -> None:
        with pytest.raises(ValueError):
            Region(["a"], STRIDED)
