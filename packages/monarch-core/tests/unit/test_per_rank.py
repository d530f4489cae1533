"""Arguments with a value for each rank: which value a rank gets, refusals, and the parts of their messages."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monarch._core.call.per_rank import PerRank, per_rank
from monarch._core.call.value_mesh import ValueMesh
from monarch._core.pickle.pickling import dumps, loads
from monarch._core.pickle.pieces import envelope
from monarch._core.shape.shape import Extent

LABELS = ("hosts", "replicas", "gpus", "stages")
quick = settings(deadline=None, max_examples=100)


def mesh(**sizes: int) -> Extent:
    return Extent(list(sizes), list(sizes.values()))


def value_mesh(extent: Extent) -> ValueMesh[int]:
    return ValueMesh(extent.region.as_shape(), range(extent.nelements))


def values_of(argument: Any, extent: Extent) -> list[Any]:
    return [argument.value(position) for position in argument.positions(extent)]


@st.composite
def extents(draw: st.DrawFn) -> tuple[Extent, Extent]:
    """The shape of a mesh, and some of its dimensions in any order."""
    labels = draw(st.lists(st.sampled_from(LABELS), unique=True))
    sizes = {label: draw(st.integers(0, 4)) for label in labels}
    some = draw(st.permutations(labels))[: draw(st.integers(0, len(labels)))]
    return Extent(labels, [sizes[x] for x in labels]), Extent(some, [sizes[x] for x in some])


class TestPositions:
    @given(extents())
    @quick
    def test_values_are_repeated_as_numpy_repeats(self, shapes: tuple[Extent, Extent]) -> None:
        whole, some = shapes
        array = np.arange(math.prod(some.sizes)).reshape(some.sizes)
        order = [some.labels.index(label) for label in whole.labels if label in some.labels]
        spread = array.transpose(order).reshape([size if label in some else 1 for label, size in whole.items()])
        assert values_of(per_rank(value_mesh(some)), whole) == np.broadcast_to(spread, whole.sizes).flatten().tolist()

    def test_sequence_has_an_item_for_each_rank(self) -> None:
        extent = mesh(hosts=2, gpus=2)
        for values in ([1, 2, 3, 4], (1, 2, 3, 4), range(1, 5), np.arange(1, 5)):
            assert values_of(per_rank(values), extent) == [1, 2, 3, 4]

    def test_slice_of_a_value_mesh_fits_a_slice(self) -> None:
        values = value_mesh(mesh(hosts=2, gpus=3)).slice(gpus=slice(1, 3))
        assert values_of(per_rank(values), mesh(hosts=2, gpus=2)) == [1, 2, 4, 5]

    @pytest.mark.parametrize(
        ("values", "text"),
        [
            ([1, 2, 3], "it has 3 values, and the mesh has 4 ranks: {hosts: 2, gpus: 2}"),
            (value_mesh(mesh(cpus=2)), "{cpus: 2}, whose dimension 'cpus' the mesh does not have: {hosts: 2, gpus: 2}"),
            (value_mesh(mesh(gpus=3)), "{gpus: 3}, which does not fit dimension 'gpus' of the mesh: {hosts: 2, gpus: 2}"),
        ],
    )
    def test_values_that_do_not_fit_are_refused(self, values: Any, text: str) -> None:
        argument: Any = per_rank(values)
        with pytest.raises(ValueError) as caught:
            argument.positions(mesh(hosts=2, gpus=2))
        assert str(caught.value).endswith(text)


class TestArgument:
    @pytest.mark.parametrize("values", [7, {0: "a"}, {1, 2}, iter([1])])
    def test_values_without_order_are_refused(self, values: Any) -> None:
        with pytest.raises(TypeError, match=r"per_rank\(\w+\): expected a sequence with an item for each rank, or a ValueMesh"):
            per_rank(values)

    @pytest.mark.parametrize("wrap", [lambda x: [x], lambda x: {"k": (x,)}])
    def test_argument_within_another_object_is_refused(self, wrap: Any) -> None:
        with pytest.raises(TypeError, match=r"per_rank\(\.\.\.\) is within another object") as caught:
            dumps(((1, wrap(per_rank([1]))), {}))
        assert [note for note in caught.value.__notes__ if note.startswith("in argument 1 -> ")]

    def test_pickle_refuses_the_argument(self) -> None:
        with pytest.raises(TypeError, match="is within another object"):
            pickle.dumps(per_rank([1]))

    def test_repr_shows_the_values(self) -> None:
        argument: Any = per_rank([1, 2])
        assert (type(argument), repr(argument)) == (PerRank, "per_rank([1, 2])")


values = st.recursive(
    st.none() | st.integers() | st.binary(max_size=600) | st.binary(min_size=256, max_size=300).map(bytearray),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


class TestMessage:
    @given(st.lists(values, max_size=4), st.dictionaries(st.sampled_from("abcd"), values, max_size=4), st.data())
    @quick
    def test_parts_are_joined_to_the_arguments(self, args: list[Any], kwargs: dict[str, Any], data: st.DataObject) -> None:
        names: list[int | str] = [*range(len(args)), *kwargs]
        own = [name for name in names if data.draw(st.booleans())]
        common = dumps((tuple(None if i in own else x for i, x in enumerate(args)), {k: v for k, v in kwargs.items() if k not in own}))
        pickles = [dumps(args[name] if isinstance(name, int) else kwargs[name]) for name in own] + [common]
        first = envelope(tuple(own), tuple(1 + len(buffers) for _, buffers in pickles))
        parts = [part for stream, buffers in pickles for part in (stream, *buffers)]
        found = loads(first, [part if isinstance(part, bytes) else bytearray(part) for part in parts])
        assert found == (tuple(args), kwargs)


def test_map_keeps_the_shape() -> None:
    doubled = value_mesh(mesh(hosts=2, gpus=3)).slice(gpus=slice(1, 3)).map(lambda x: 2 * x)
    assert (doubled.sizes, doubled.values()) == ({"hosts": 2, "gpus": 2}, [2, 4, 8, 10])
