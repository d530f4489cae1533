"""The planner against arrays: what its pieces copy is the global tensor, for any two layouts."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch.rdma import RDMAAccessError
from monarch.rdma.weights import Box, LayoutError
from monarch.rdma.weights.columns import copy_layout
from monarch.rdma.weights.local_tensor import local_tensors
from monarch.rdma.weights.planner import Source, by_group, find_pieces, find_runs, flattened, merged
from monarch.rdma.weights.sharding import Cut, parts, ranges
from monarch.rdma.weights.table import Table, padded


def laid_out(whole, mesh, placements, coordinate):
    """The local array of a rank, and its tensor description: what a DTensor has."""
    cuts = [[] for _ in whole.shape]
    for count, at, placement in zip(mesh, coordinate, placements, strict=True):
        if placement is not None:
            dim, split = placement
            cuts[dim].append(Cut(count, at, split))
    by_dim = [ranges(size, tuple(cut)) for size, cut in zip(whole.shape, cuts, strict=True)]
    picked = [[i for start, count in found for i in range(start, start + count)] for found in by_dim]
    return np.ascontiguousarray(whole[np.ix_(*picked)]) if whole.ndim else whole.copy(), parts(by_dim)


def table(locals_, wholes):
    """The table of a rank, whose tensors lie at their addresses."""
    described = local_tensors({name: array for name, (array, _) in locals_.items()})
    plain = described.table
    rows = [(i, part) for i, name in enumerate(plain.names) for part in locals_[name][1] if 0 not in part.shape]
    tensor = np.array([i for i, _ in rows], np.int64)

    def column(field, value):
        return padded([n for _, part in rows for n in getattr(part, field)], plain.dims[tensor], plain.width, value)

    whole = padded([n for name in plain.names for n in wholes[name].shape], plain.dims, plain.width, 1)
    strides = padded([n for array, _ in locals_.values() for n in array.strides], plain.dims, plain.width, 0)[tensor]
    start = described.address[tensor] + (column("local", 0) * strides).sum(axis=1)
    region, low, shape = np.zeros_like(tensor), column("low", 0), column("shape", 1)
    return plain._replace(whole=whole, tensor=tensor, region=region, start=start, low=low, shape=shape, strides=strides)


def copied(target, pieces, staged):
    """Copies by the runs of the pieces, as the transports would: through a staging memory or directly."""
    if not staged:
        runs = merged(
            find_runs(pieces.extent, pieces.itemsize, (pieces.start, pieces.strides), (pieces.local, pieces.local_strides)), pieces.source
        )
        _move(runs)
        return runs
    memory = np.zeros(max(pieces.staging, 1), np.uint8)
    base = memory.ctypes.data
    dense = pieces.dense + base
    fetch = merged(find_runs(pieces.extent, pieces.itemsize, (pieces.start, pieces.strides), (dense, pieces.dense_strides)), pieces.source)
    for _, runs in by_group(fetch, pieces.source):
        _move(runs)
    commit = find_runs(pieces.extent, pieces.itemsize, (dense, pieces.dense_strides), (pieces.local, pieces.local_strides))
    _move(commit)
    return fetch


def copy_in_columns(live, parts):
    """The table of a copy of these blocks, whose starts are addresses, and its memory."""
    layout = copy_layout(live, parts)
    made = layout.table
    memory = np.zeros(layout.size, np.uint8)
    start = made.start + memory.ctypes.data
    _move(find_runs(made.shape, made.itemsize[made.tensor], (layout.start, layout.strides), (start, made.strides)))
    return made._replace(start=start), memory


def _move(runs):
    import ctypes

    runs = flattened(runs)
    for a, b, n in zip(runs.there.tolist(), runs.here.tolist(), runs.nbytes.tolist(), strict=True):
        ctypes.memmove(b, a, n)


@st.composite
def layouts(draw, dims):
    mesh = tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)))
    by_tensor = {}
    for name, count in dims.items():
        shards = st.tuples(st.integers(0, count - 1), st.sampled_from([1, 1, 2, 3])) if count else st.nothing()
        by_tensor[name] = [draw(st.one_of(st.none(), shards)) for _ in mesh]
    return mesh, by_tensor


@st.composite
def transfers(draw):
    shapes = {f"t{i}": tuple(draw(st.lists(st.integers(1, 9), max_size=3))) for i in range(draw(st.integers(1, 3)))}
    dims = {name: len(shape) for name, shape in shapes.items()}
    return shapes, draw(layouts(dims)), draw(layouts(dims)), draw(st.booleans()), draw(st.one_of(st.none(), st.integers(1, 4)))


@given(transfers())
def test_every_target_equals_the_global_tensor(given):
    shapes, (source_mesh, source_layout), (target_mesh, target_layout), staged, columns = given
    kinds = itertools.cycle([np.float32, np.int8, np.float64])
    wholes = {
        name: (np.arange(np.prod(shape)) % 119 + i).reshape(shape).astype(next(kinds)) for i, (name, shape) in enumerate(shapes.items())
    }
    sources, kept = [], []
    for rank, at in enumerate(itertools.product(*map(range, source_mesh))):
        made = {name: laid_out(whole, source_mesh, source_layout[name], at) for name, whole in wholes.items()}
        kept.append(made)
        has = table(made, wholes)
        if columns is not None:
            has, memory = copy_in_columns(has, columns)
            kept.append(memory)
        sources.append(Source(has, 1 + rank % 2, f"rank {rank}"))
    for rank, at in enumerate(itertools.product(*map(range, target_mesh))):
        made = {name: laid_out(whole, target_mesh, target_layout[name], at) for name, whole in wholes.items()}
        wanted = {name: array.copy() for name, (array, _) in made.items()}
        for array, _ in made.values():
            array[...] = 0
        described = table(made, wholes)
        pieces = find_pieces(described, sources, rank=rank)
        copied(described, pieces, staged)
        assert all((made[name][0] == wanted[name]).all() for name in wholes)
        # No byte is moved twice.
        assert pieces.nbytes == described.nbytes()


@st.composite
def overlapping(draw):
    shape = tuple(draw(st.lists(st.integers(1, 8), min_size=1, max_size=3)))
    boxes = []
    for _ in range(draw(st.integers(1, 6))):
        low = tuple(draw(st.integers(0, n - 1)) for n in shape)
        boxes.append((low, tuple(draw(st.integers(1, n - a)) for n, a in zip(shape, low, strict=True))))
    return shape, boxes


@given(overlapping())
def test_boxes_that_overlap_cover_or_have_a_hole(given):
    shape, boxes = given
    whole = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    covered = np.zeros(shape, bool)
    sources, kept = [], []
    for low, size in boxes:
        index = tuple(slice(a, a + n) for a, n in zip(low, size, strict=True))
        covered[index] = True
        kept.append(np.ascontiguousarray(whole[index]))
        sources.append(Source(local_tensors({"w": (kept[-1], Box(low, size, shape))}).table, 1, f"rank {len(sources)}"))
    into = np.zeros_like(whole)
    target = local_tensors({"w": into}).table
    if covered.all():
        pieces = find_pieces(target, sources)
        copied(target, pieces, True)
        assert (into == whole).all() and pieces.nbytes == whole.nbytes
        return
    with pytest.raises(LayoutError, match="tensor 'w': no source has") as raised:
        find_pieces(target, sources)
    assert raised.value.tensor == "w"
    # The first hole that the text names is one.
    hole = str(raised.value).split("no source has ")[1].split("]")[0].removeprefix("any part of ").strip("[")
    index = tuple(slice(*map(int, part.split(":"))) for part in hole.split(", "))
    assert not covered[index].any() and covered[index].size


def rows(whole, ranks):
    """Each rank has some rows."""
    made = []
    for part in np.array_split(np.arange(len(whole)), ranks):
        box = Box((int(part[0]), *[0] * (whole.ndim - 1)), (len(part), *whole.shape[1:]), whole.shape)
        made.append({"w": (whole[part[0] : part[-1] + 1], box)})
    return made


def sources_of(states, distances=None):
    distances = distances or [1] * len(states)
    return [Source(local_tensors(state).table, distances[i], f"rank {i} of 'trainers'") for i, state in enumerate(states)]


def test_nearest_source_is_chosen():
    whole = np.arange(64, dtype=np.float32).reshape(8, 8)
    copies = [{"w": whole.copy()} for _ in range(3)]
    target = local_tensors({"w": np.zeros_like(whole)}).table
    assert set(find_pieces(target, sources_of(copies, [2, 1, 2])).source.tolist()) == {1}
    assert set(find_pieces(target, sources_of(copies, [2, 2, 0])).source.tolist()) == {2}


def test_equal_sources_share_the_bytes_evenly():
    names = [f"layer{i}" for i in range(400)]
    state = {name: np.zeros((4, 4), np.float32) for name in names}
    moved = np.zeros(4)
    for rank in range(8):
        pieces = find_pieces(local_tensors(state).table, sources_of([state] * 4), rank=rank)
        moved += np.bincount(pieces.source, pieces.extent.prod(axis=1) * pieces.itemsize, 4)
        # Neighbours come from the same source, but for where it changes.
        order = np.argsort(pieces.tensor)
        assert np.count_nonzero(np.diff(pieces.source[order])) <= 4
    assert moved.max() <= 1.02 * moved.mean()


def test_contiguous_pieces_are_one_read():
    arena = np.arange(1000, dtype=np.float32)
    state = {f"layer{i}": arena[i * 10 : (i + 1) * 10] for i in range(100)}
    into = np.zeros(1000, np.float32)
    target = local_tensors({f"layer{i}": into[i * 10 : (i + 1) * 10] for i in range(100)}).table
    for staged in (False, True):
        assert copied(target, find_pieces(target, sources_of([state])), staged).nbytes.tolist() == [4000]
        assert (into == arena).all()
        into[:] = 0


def test_columns_of_rows_are_runs():
    whole = np.arange(64, dtype=np.int16).reshape(8, 8)
    into = np.zeros((8, 2), np.int16)
    target = local_tensors({"w": (into, Box((0, 4), (8, 2), (8, 8)))}).table
    pieces = find_pieces(target, sources_of(rows(whole, 4)))
    runs = copied(target, pieces, False)
    assert (into == whole[:, 4:6]).all() and flattened(runs).nbytes.tolist() == [4] * 8 and pieces.nbytes == into.nbytes


@pytest.mark.parametrize("parts", [4, 8])
def test_columns_of_copies_are_one_read(parts):
    wholes = {f"t{i}": np.arange(64 * 16.0).reshape(64, 16) + i for i in range(3)} | {"bias": np.arange(16.0)}
    states = [
        {
            name: (whole[32 * i : 32 * i + 32], Box((32 * i, 0), (32, 16), (64, 16))) if whole.ndim > 1 else whole
            for name, whole in wholes.items()
        }
        for i in range(2)
    ]
    made = [copy_in_columns(local_tensors(state).table, parts) for state in states]
    sources = [Source(has, 1, f"rank {rank}") for rank, (has, _) in enumerate(made)]
    for rank in range(4):
        into = {name: (np.zeros((64, 4)), Box((0, 4 * rank), (64, 4), (64, 16))) for name in ("t0", "t1", "t2")}
        described = local_tensors(into).table
        runs = copied(described, find_pieces(described, sources), staged=True)
        assert len(runs.piece) == 2
        assert all((into[name][0] == wholes[name][:, 4 * rank : 4 * rank + 4]).all() for name in into)


def test_views_with_strides():
    whole = np.arange(120, dtype=np.float64).reshape(5, 24)[::-1, ::2]
    into = np.zeros((12, 5))
    target = local_tensors({"w": into.T}).table
    for staged in (False, True):
        copied(target, find_pieces(target, sources_of([{"w": whole}])), staged)
        assert (into.T == whole).all()
        into[:] = 0


def test_numbers_of_dimensions_may_differ_among_tensors():
    state = {"scalar": np.array(3.5), "cube": np.arange(8.0).reshape(2, 2, 2), "empty": np.zeros((0, 3))}
    into = {name: np.zeros_like(array) for name, array in state.items()}
    target = local_tensors(into).table
    copied(target, find_pieces(target, sources_of([state])), True)
    assert into["scalar"] == 3.5 and (into["cube"] == state["cube"]).all()


@pytest.mark.parametrize(
    ("published", "wanted", "text"),
    [
        ({"a": np.zeros(3)}, {"b": np.zeros(3)}, r"tensor 'b': no source has any part of \[0:3\]"),
        (
            {"a": np.zeros((2, 3))},
            {"a": np.zeros((3, 2))},
            r"tensor 'a': it has the global shape \(2, 3\) in rank 0 of 'trainers', and \(3, 2\)",
        ),
        ({"a": np.zeros((1, 3))}, {"a": np.zeros(3)}, r"tensor 'a': it has the global shape \(1, 3\) in rank 0 of 'trainers', and \(3,\)"),
        (
            {"a": np.zeros(3, np.float16)},
            {"a": np.zeros(3)},
            r"tensor 'a': it is float16 in rank 0 of 'trainers', and float64(?s:.*)cast=True",
        ),
        (
            {"a": (np.zeros((2, 4)), Box((2, 0), (2, 4), (6, 4)))},
            {"a": (np.zeros((5, 2)), Box((0, 1), (5, 2), (6, 4)))},
            r"tensor 'a': no source has \[0:2, 1:3\], \[4:5, 1:3\] of \[0:5, 1:3\]",
        ),
    ],
)
def test_layouts_that_do_not_fit(published, wanted, text):
    with pytest.raises(LayoutError, match=text) as raised:
        find_pieces(local_tensors(wanted).table, sources_of([published]))
    assert raised.value.tensor in ("a", "b") and raised.value.code == "weights_layout"


def test_casts_are_of_the_source():
    target = local_tensors({"a": np.zeros(6)}).table
    pieces = find_pieces(target, sources_of([{"a": np.arange(6, dtype=np.int16)}]), cast=True)
    assert (pieces.nbytes, pieces.dtypes, pieces.dtype.tolist(), pieces.itemsize.tolist()) == (12, ("float64", "int16"), [1], [2])


@pytest.mark.parametrize(
    ("state", "error", "text"),
    [
        ({"a": [1, 2]}, TypeError, "tensor 'a': expected a tensor of PyTorch, an array of NumPy"),
        ({"a": np.array([None])}, TypeError, "tensor 'a': an array of dtype object"),
        ({"a": np.zeros(2, ">f4")}, TypeError, "tensor 'a': an array of dtype >f4"),
        ({3: np.zeros(2)}, TypeError, "the key 3 is no str"),
        ({"a": (np.zeros(2), Box((0,), (3,), (3,)))}, ValueError, r"tensor 'a': its shape is \(2,\), and that of its Box \(3,\)"),
    ],
)
def test_states_that_are_refused(state, error, text):
    with pytest.raises(error, match=text):
        local_tensors(state)


def test_boxes_that_are_refused():
    with pytest.raises(ValueError, match="the same number of dimensions"):
        Box((0,), (1, 2), (3, 4))
    with pytest.raises(ValueError, match="is not within the global tensor"):
        Box((2,), (2,), (3,))
    with pytest.raises(TypeError):
        Box((0.5,), (2,), (3,))
    assert Box([1], [2], [3]) == Box((1,), (2,), (3,))


def test_tables_travel_as_bytes():
    made = local_tensors({"a": np.zeros((2, 3)), "é\n": np.zeros(4, np.int8), "empty": np.zeros(0)}).table
    again = Table.unpacked(made.packed())
    assert again[:2] == made[:2] == (("a", "é\n", "empty"), ("float64", "int8")) and all(
        (a == b).all() for a, b in zip(again[2:], made[2:], strict=True)
    )
    for body in (b"", made.packed()[:40], made.packed()[:-1], b"\xff" * 100):
        with pytest.raises(RDMAAccessError, match="malformed table of weights"):
            Table.unpacked(body)


def layout_of(array, base):
    """First byte and strides of one box, as the planner has them."""
    address = array.__array_interface__["data"][0]
    return np.array([address - base]), np.array([array.strides], np.int64).reshape(1, array.ndim)


def check_runs(there, here):
    """The runs between two views of the same shape copy item by item; returns them."""
    extent, itemsize = np.array([there.shape], np.int64), np.array([there.itemsize])
    runs = find_runs(extent, itemsize, layout_of(there, 0), layout_of(here, 0))
    assert (runs.there_step >= 0).all() and (runs.counts >= 1).all() and runs.size() == here.nbytes
    inner = np.where(runs.counts[:, 1] > 1, runs.there_step[:, 1], runs.nbytes)
    assert (inner >= runs.nbytes).all()
    _move(runs)
    assert (here == there).all()
    return runs


@given(st.data())
def test_runs_of_any_views(data):
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    views = []
    for _ in range(2):
        order = data.draw(st.permutations(range(len(shape))))
        steps = [data.draw(st.sampled_from([1, 1, 2, -1])) for _ in shape]
        memory = np.zeros([shape[i] * abs(steps[i]) for i in order], np.int16)
        views.append(memory.transpose(np.argsort(order))[tuple(slice(None, None, step) for step in steps)])
    there, here = views
    there[...] = np.arange(there.size).reshape(shape)
    check_runs(there, here)


def test_columns_are_one_strided_row():
    there = np.arange(64, dtype=np.int16).reshape(8, 8)[:, 2:5]
    runs = check_runs(there, np.zeros((8, 3), np.int16))
    assert runs.rows()[:, 2:].tolist() == [[6, 1, 0, 0, 8, 16, 6]]


def test_blocks_collapse_to_two_dimensions():
    whole = np.arange(4 * 3 * 5 * 6, dtype=np.int32).reshape(4, 3, 5, 6)
    runs = check_runs(whole[:, :, 1:3, :4], np.zeros((4, 3, 2, 4), np.int32))
    assert runs.nbytes.tolist() == [16] and runs.counts.tolist() == [[12, 2]]


def test_third_dimension_is_rows():
    whole = np.arange(4 * 5 * 6 * 7, dtype=np.int32).reshape(4, 5, 6, 7)
    runs = check_runs(whole[:, :3, :2, :4], np.zeros((4, 3, 2, 4), np.int32))
    assert runs.counts.tolist() == [[3, 2]] * 4


def test_expanded_source_is_rows():
    there = np.broadcast_to(np.arange(3, dtype=np.int64)[:, None], (3, 4))
    runs = check_runs(there, np.zeros((3, 4), np.int64))
    assert runs.counts.tolist() == [[1, 1]] * 12
