"""Batches of commands: what goes in comes out, and anything else is refused before a command of it is executed."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch.tensor._protocol.commands import Grid, Segment, decode, encode

numbers = st.integers(-(2**63), 2**63 - 1)
small = st.integers(0, 1000)
segments = st.builds(Segment, small, small, small, st.lists(numbers, max_size=20), st.lists(st.floats(allow_nan=False), max_size=5))


@given(st.lists(segments, max_size=6))
def test_batch_survives_encoding(batch):
    assert decode(*encode(batch)) == batch


@given(st.lists(segments, max_size=4), st.data())
def test_corrupted_batch_is_refused_or_bounded(batch, data):
    encoded, constants = encode(batch)
    body = bytearray(encoded)
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = decode(bytes(body), constants)
    except ValueError:
        return
    assert sum(len(s.code) for s in found) <= len(body) // 8
    assert [value for s in found for value in s.constants] == constants


@given(st.binary(max_size=200), st.lists(st.just(1.0), max_size=3))
def test_any_bytes_are_refused_or_decoded(body, constants):
    try:
        decode(body, constants)
    except ValueError as e:
        assert "batch" in str(e)


@pytest.mark.parametrize("cut", [1, 8, 16])
def test_truncated_batch_is_refused(cut):
    encoded, constants = encode([Segment(0, 0, 0, [1, 2, 3], [1.0])])
    with pytest.raises(ValueError, match="batch"):
        decode(encoded[:-cut], constants)


def test_constants_that_belong_to_no_segment_are_refused():
    encoded, constants = encode([Segment(0, 0, 0, [1], [1.0])])
    with pytest.raises(ValueError, match="1 constants too many"):
        decode(encoded, [*constants, 2.0])


def grids():
    """Meshes as slices and splits make them: row-major, cut in each dimension, dimensions in any order."""
    dims = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3), st.integers(1, 3)), min_size=1, max_size=3)

    def made(parts, order):
        strides, step = [], 1
        for size, _, skip in reversed(parts):
            strides.insert(0, step * skip)
            step *= size * skip + 3
        kept = [(size, stride) for (size, _, _), stride in zip(parts, strides, strict=True)]
        kept = [kept[i % len(kept)] for i in order if i < len(kept)] or kept
        names = tuple(f"d{i}" for i in range(len(kept)))
        return Grid(names, parts[0][1], tuple(k[0] for k in kept), tuple(k[1] for k in kept))

    return st.builds(made, dims, st.permutations([0, 1, 2]))


@given(grids())
def test_ranks_and_coordinates_are_inverse(grid):
    ranks = grid.ranks()
    places = list(itertools.product(*(range(n) for n in grid.sizes)))
    assert [grid.rank_at(place) for place in places] == list(ranks)
    assert [grid.place_of(rank) for rank in ranks] == places
    assert all(grid.place_of(rank) is None for rank in range(max(ranks) + 3) if rank not in ranks)


@given(grids(), st.data())
def test_line_of_a_rank_spans_the_named_dimensions(grid, data):
    rank = data.draw(st.sampled_from(grid.ranks()))
    dims = tuple(data.draw(st.lists(st.sampled_from(grid.labels), unique=True)))
    line = grid.line(rank, dims)
    place = grid.place_of(rank)
    assert line[grid.index_in(rank, dims)] == rank
    assert len(set(line)) == len(line)
    expected = {
        other
        for other in grid.ranks()
        if all(a == b for a, b, label in zip(grid.place_of(other), place, grid.labels, strict=True) if label not in dims)
    }
    assert set(line) == expected
