"""The boxes of sharded tensors, against the definition of each placement on an array of indices."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch.rdma.weights.sharding import Cut, parts, parts_of, ranges


def chunk(items, parts):
    """`torch.chunk`, with empty parts at the end."""
    length = -(-len(items) // parts)
    return [items[i * length : (i + 1) * length] for i in range(parts)]


def model(items, cuts):
    for count, mine, split in cuts:
        items = np.concatenate([chunk(part, count)[mine] for part in chunk(items, split)])
    return items


@st.composite
def cutting(draw):
    size = draw(st.integers(0, 40))
    cuts = []
    for _ in range(draw(st.integers(0, 3))):
        count = draw(st.integers(1, 5))
        cuts.append(Cut(count, draw(st.integers(0, count - 1)), draw(st.integers(1, 4))))
    return size, tuple(cuts)


@given(cutting())
def test_ranges_are_the_indices_of_the_model(given):
    size, cuts = given
    found = ranges(size, cuts)
    indices = [i for start, count in found for i in range(start, start + count)]
    assert indices == model(np.arange(size), cuts).tolist()
    assert all(count > 0 and start >= 0 for start, count in found) or size == 0


def test_strided_shard_of_pytorch():
    """The example in `_StridedShard._to_replicate_tensor` of PyTorch 2.15."""
    found = [[i for start, count in ranges(9, (Cut(4, mine, 2),)) for i in range(start, start + count)] for mine in range(4)]
    assert found == [[0, 1, 5], [2, 3, 6], [4, 7], [8]]


def test_parts_are_boxes_in_local_order():
    whole = np.arange(6 * 8).reshape(6, 8)
    by_dim = [ranges(6, (Cut(2, 1),)), ranges(8, (Cut(2, 0, 2),))]
    local = whole[np.ix_(*[[i for start, count in found for i in range(start, start + count)] for found in by_dim])]
    seen = np.full_like(local, -1)
    for low, at, shape in parts(by_dim):
        box = tuple(slice(a, a + n) for a, n in zip(low, shape, strict=True))
        seen[tuple(slice(a, a + n) for a, n in zip(at, shape, strict=True))] = whole[box]
    assert (seen == local).all()


class Placement(SimpleNamespace):
    def is_replicate(self):
        return self.kind == "replicate"

    def is_partial(self):
        return self.kind == "partial"


class Tensor(SimpleNamespace):
    """What is needed of a DTensor."""

    def to_local(self):
        return np.empty(self.local)


def dtensor(placements, coordinate, local, shape=(8, 6), sizes=(2, 3), **more):
    mesh = SimpleNamespace(get_coordinate=lambda: coordinate, size=lambda dim: sizes[dim])
    return Tensor(shape=shape, placements=placements, device_mesh=mesh, local=local, **more)


def test_placements_of_a_mesh():
    shard, replicate = Placement(kind="shard", dim=-1), Placement(kind="replicate")
    assert parts_of(dtensor([replicate, shard], [1, 2], (8, 2))) == [((0, 4), (0, 0), (8, 2))]
    first = Placement(kind="shard", dim=0)
    assert parts_of(dtensor([first, first], [1, 0], (2, 6))) == [((4, 0), (0, 0), (2, 6))]
    assert parts_of(dtensor([replicate, shard], None, (0, 0))) == []


def test_order_of_the_tensor_prevails():
    first = Placement(kind="shard", dim=0)
    spec = SimpleNamespace(shard_order=(SimpleNamespace(tensor_dim=0, mesh_dims=(1, 0)),))
    # Three parts of 3, 3 and 2 rows, and the second half of the first of them.
    assert parts_of(dtensor([first, first], [1, 0], (1, 6), _spec=spec)) == [((2, 0), (0, 0), (1, 6))]


def test_placements_without_a_layout():
    with pytest.raises(ValueError, match="is no layout of its items"):
        parts_of(dtensor([Placement(kind="partial"), Placement(kind="replicate")], [0, 0], (8, 6)))
    with pytest.raises(ValueError, match="local shape of"):
        parts_of(dtensor([Placement(kind="shard", dim=0), Placement(kind="replicate")], [0, 0], (8, 6)))
