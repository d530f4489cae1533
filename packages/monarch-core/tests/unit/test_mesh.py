"""The mesh trait against a NumPy array of ranks with names for its axes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monarch._core.shape.mesh import MeshTrait
from monarch._core.shape.shape import Extent, Shape, Slice

quick = settings(deadline=None, max_examples=150)


class Ranks(MeshTrait):
    """A mesh with nothing but its shape."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape

    @property
    def _ndslice(self) -> Slice:
        return self.shape.ndslice

    @property
    def _labels(self) -> tuple[str, ...]:
        return tuple(self.shape.labels)

    def _new_with_shape(self, shape: Shape) -> Ranks:
        return type(self)(shape)


class Whole(Ranks):
    _whole_slice_is_self = True


def mesh(offset: int = 0, **sizes: int) -> Ranks:
    dense = Slice.new_row_major(sizes.values())
    return Ranks(Shape(sizes, Slice(offset=offset, sizes=dense.sizes, strides=dense.strides)))


def model(offset: int, sizes: Iterable[int]) -> np.ndarray:
    sizes = tuple(sizes)
    return np.arange(int(np.prod(sizes))).reshape(sizes) + offset


def check(ours: Ranks, labels: list[str], ranks: np.ndarray) -> None:
    sizes = dict(zip(labels, ranks.shape, strict=True))
    assert list(ours._labels) == labels
    assert list(ours._ndslice) == [int(r) for r in ranks.flat]
    assert ours.sizes == sizes
    assert list(ours.sizes) == labels
    assert ours.extent == Extent(labels, ranks.shape)
    assert len(ours) == ours.size() == ranks.size
    assert all(ours.size(label) == size for label, size in sizes.items())
    assert ours.size(labels) == ranks.size


def is_dense(ranks: np.ndarray) -> bool:
    flat = [int(r) for r in ranks.flat]
    return flat == list(range(flat[0], flat[0] + len(flat))) if flat else True


def factors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0] if n else [1, 2]


@quick
@given(st.data())
def test_any_sequence_of_operations_agrees_with_numpy(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(0, 6), max_size=3))
    offset = data.draw(st.integers(0, 5))
    labels = [f"d{i}" for i in range(len(sizes))]
    ranks = model(offset, sizes)
    ours = mesh(offset, **dict(zip(labels, sizes, strict=True)))
    fresh = iter(f"n{i}" for i in range(100))
    for _ in range(data.draw(st.integers(1, 5))):
        kind = data.draw(st.sampled_from(["at", "slice", "split", "flatten", "rename"]))
        if kind == "flatten":
            name = next(fresh)
            if is_dense(ranks):
                ours, labels, ranks = ours.flatten(name), [name], ranks.reshape(-1)
            else:
                with pytest.raises(ValueError, match="cannot flatten sparse mesh"):
                    ours.flatten(name)
        elif labels:
            axis = data.draw(st.integers(0, len(labels) - 1))
            label, size = labels[axis], ranks.shape[axis]
            if kind == "at" and size:
                i = data.draw(st.integers(0, size - 1))
                ours, labels, ranks = ours.slice(**{label: i}), labels[:axis] + labels[axis + 1 :], ranks.take(i, axis=axis)
            elif kind == "slice":
                bound = st.none() | st.integers(-7, 7)
                key = slice(data.draw(bound), data.draw(bound), data.draw(st.none() | st.integers(1, 4)))
                ours, ranks = ours.slice(**{label: key}), ranks[(slice(None),) * axis + (key,)]
            elif kind == "split":
                inner, outer_name, inner_name = data.draw(st.sampled_from(factors(size))), next(fresh), next(fresh)
                ours = ours.split(**{label: (outer_name, inner_name), inner_name: inner})
                labels = [*labels[:axis], outer_name, inner_name, *labels[axis + 1 :]]
                ranks = ranks.reshape(*ranks.shape[:axis], size // inner, inner, *ranks.shape[axis + 1 :])
            elif kind == "rename":
                name = next(fresh)
                ours, labels = ours.rename(**{label: name}), [name if old == label else old for old in labels]
        check(ours, labels, ranks)


@pytest.mark.parametrize("sizes", [{}, {"a": 1}, {"a": 4}, {"a": 2, "b": 3}, {"a": 1, "b": 1}, {"a": 3, "b": 1}, {"a": 0, "b": 2}])
def test_slice_without_the_first_matches_the_model(sizes: dict[str, int]) -> None:
    ours = mesh(7, **sizes)
    rest = ours.flatten("rank").slice(rank=slice(1, None))
    check(rest, ["rank"], model(7, sizes.values()).reshape(-1)[1:])


def test_flatten_of_one_column_is_sparse() -> None:
    column = mesh(a=2, b=3).slice(b=slice(1, 2))
    with pytest.raises(ValueError, match="cannot flatten sparse mesh"):
        column.flatten("r")
    assert list(mesh(a=1, b=3).slice(b=slice(1, 2)).flatten("r")._ndslice) == [1]


def test_flatten_keeps_the_offset() -> None:
    row = mesh(a=2, b=3).slice(a=1)
    assert row.flatten("r").shape == Shape(["r"], Slice(offset=3, sizes=[3], strides=[1]))


def test_flatten_of_no_dimensions() -> None:
    assert mesh(a=2, b=3).slice(a=1, b=1).flatten("r").shape == Shape(["r"], Slice(offset=4, sizes=[1], strides=[1]))


@pytest.mark.parametrize(
    ("dims", "error"),
    [
        ({"x": 1}, TypeError),
        ({"x": slice(None)}, TypeError),
        ({"a": 2}, IndexError),
        ({"a": -1}, IndexError),
        ({"a": None}, TypeError),
        ({"a": 1.0}, TypeError),
        ({"a": "0"}, TypeError),
        ({"a": slice(None, None, -1)}, ValueError),
        ({"a": slice(None, None, 0)}, ValueError),
    ],
)
def test_slice_refuses(dims: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        mesh(a=2, b=6).slice(**dims)


def test_slice_takes_several_dimensions_at_once() -> None:
    check(mesh(a=2, b=6).slice(b=slice(0, 6, 4), a=1), ["b"], model(0, (2, 6))[1, 0:6:4])
    check(mesh(a=2, b=6).slice(), ["a", "b"], model(0, (2, 6)))
    check(mesh(a=2, b=6).slice(b=slice(6, None)), ["a", "b"], model(0, (2, 6))[:, 6:])


def test_slice_takes_index_objects() -> None:
    check(mesh(a=2, b=6).slice(a=np.int64(1)), ["b"], model(0, (2, 6))[1])  # type: ignore[arg-type]


def test_labels_may_be_called_self() -> None:
    ours = mesh(a=2).rename(a="self")
    assert list(ours.slice(self=1)._ndslice) == [1]
    assert list(ours.rename(self="b")._labels) == ["b"]


def test_split_examples() -> None:
    ours = mesh(hosts=4, gpus=6)
    check(ours.split(hosts=("dp", "pp"), gpus=("tp", "cp"), pp=2, cp=3), ["dp", "pp", "tp", "cp"], model(0, (2, 2, 2, 3)))
    check(ours.split(gpus=("x", "y", "z"), x=1, y=2), ["hosts", "x", "y", "z"], model(0, (4, 1, 2, 3)))
    check(ours.split(gpus=("x", "y"), x=2, y=3), ["hosts", "x", "y"], model(0, (4, 2, 3)))
    check(ours.split(gpus=("gpus", "y"), y=3), ["hosts", "gpus", "y"], model(0, (4, 2, 3)))
    check(ours.split(hosts=("gpus",), gpus=("hosts",)), ["gpus", "hosts"], model(0, (4, 6)))
    check(ours.split(), ["hosts", "gpus"], model(0, (4, 6)))
    check(mesh(a=1, b=2).split(a=()), ["b"], model(0, (2,)))


@pytest.mark.parametrize(
    ("dims", "text"),
    [
        ({"b": "cd"}, "'cd'"),
        ({"b": ("c", "d"), "c": "2"}, "'c'"),
        ({"b": ("c", "d"), "c": 2.0}, "'c'"),
        ({"b": ("c", "d")}, "unknown"),
        ({"b": ("c", "d"), "d": 4}, "not evenly divided"),
        ({"b": ("c", "d"), "c": 2, "d": 2}, "not evenly divided"),
        ({"b": ("c", "d"), "d": 0}, "not evenly divided"),
        ({"b": ("c", "d"), "d": -2}, "negative"),
        ({"b": ()}, "not evenly divided"),
        ({"b": ("c", "c"), "c": 1}, "duplicate"),
        ({"b": ("a", "d"), "d": 3}, "duplicate"),
        ({"b": ("c", "d"), "d": 3, "e": 2}, "'e'"),
        ({"c": 1}, "'c'"),
        ({"x": ("y", "z")}, "'x'"),
    ],
)
def test_split_refuses(dims: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        mesh(a=2, b=6).split(**dims)


def test_split_wants_names() -> None:
    with pytest.raises(ValueError, match="sequence of dimension names"):
        mesh(a=2).split(a=2)
    with pytest.raises(TypeError):
        mesh(a=2).rename(a=3)  # type: ignore[arg-type]


def test_rename() -> None:
    check(mesh(a=2, b=3).rename(a="b", b="a"), ["b", "a"], model(0, (2, 3)))
    with pytest.raises(ValueError, match="duplicate"):
        mesh(a=2, b=3).rename(a="b")
    with pytest.raises(ValueError, match="'x'"):
        mesh(a=2, b=3).rename(x="b")


def test_size() -> None:
    ours = mesh(a=2, b=3, c=5)
    assert (ours.size(), ours.size("b"), ours.size(("a", "c")), ours.size([])) == (30, 3, 10, 1)
    for unknown in ("x", ["a", "x"]):
        with pytest.raises(KeyError):
            ours.size(unknown)
    assert mesh().size() == 1


def test_slice_of_the_whole_can_be_the_mesh() -> None:
    ours = Whole(Shape(["a", "b"], Slice.new_row_major([2, 1])))
    for key in (slice(None), slice(0, None), slice(0, 9), slice(None, None, 1)):
        assert ours.slice(a=key) is ours
    assert ours.slice() is ours
    assert ours.slice(b=slice(0, 1, 5)) is ours
    assert ours.slice(a=slice(0, 1)) is not ours
    assert ours.slice(b=0) is not ours
    assert ours.rename(a="c") is not ours
    plain = mesh(a=2)
    assert plain.slice() is not plain


def test_trait_is_abstract() -> None:
    with pytest.raises(TypeError):
        MeshTrait()  # type: ignore[abstract]
