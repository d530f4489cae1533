"""Reductions and movements, against what torch gives for the tensors of all ranks."""

import functools
import linecache
import os

import pytest
import torch

from monarch.actor import this_host
from monarch.tensor import RemoteException, inspect, no_mesh, reduce, reduce_, remote, slice_mesh, to_mesh

pytestmark = pytest.mark.timeout(180)

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]


def data(rank, dtype, shape=(2, 3)):
    """The numbers of a rank, the same on the controller and on the workers."""
    count = 1
    for n in shape:
        count *= n
    numbers = (torch.arange(count) * 7 + rank * 5) % 11 + 1
    return numbers.reshape(shape).to(dtype)


def on_mesh(mesh, dtype, shape=(2, 3)):
    count = 1
    for n in shape:
        count *= n
    numbers = (torch.arange(count) * 7 + mesh.process_idx() * 5) % 11 + 1
    return numbers.reshape(shape).to(dtype)


COMBINE = {
    "sum": torch.add,
    "product": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
    "band": torch.bitwise_and,
    "bor": torch.bitwise_or,
    "bxor": torch.bitwise_xor,
}


def expected(parts, reduction):
    with no_mesh.activate():
        if reduction == "avg":
            return functools.reduce(torch.add, parts) / len(parts)
        return functools.reduce(COMBINE[reduction], parts)


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint64, torch.float8_e4m3fn], ids=str)
def test_types_that_are_moved_only(four, dtype):
    with four.activate() as mesh:
        t = torch.zeros(mesh.sizes["gpus"], dtype=dtype)
        for scatter in (False, True):
            with pytest.raises(ValueError, match=r"reduce: 'sum' of (uint|float8).*\[2\] is not offered on the CPU: convert the tensor"):
                t.reduce("gpus", "sum", scatter=scatter)
        assert inspect(t.reduce("gpus", "stack")).shape == (2, 2)


@pytest.mark.parametrize("reduction", ["sum", "avg", "product", "min", "max", "band", "bor", "bxor"])
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.complex64], ids=str)
def test_all_reduce(four, dtype, reduction):
    with four.activate() as mesh:
        t = on_mesh(mesh, dtype)
        bits = reduction in ("band", "bor", "bxor")
        if bits and (dtype.is_floating_point or dtype.is_complex):
            with pytest.raises(ValueError, match="is for integers" if dtype.is_floating_point else "complex numbers"):
                t.reduce("gpus", reduction)
            return
        if reduction == "avg" and not (dtype.is_floating_point or dtype.is_complex):
            with pytest.raises(ValueError, match="'avg' is for floating point numbers"):
                t.reduce("gpus", reduction)
            return
        if dtype.is_complex and reduction not in ("sum", "avg"):
            with pytest.raises(ValueError, match="complex numbers"):
                t.reduce("gpus", reduction)
            return
        along = t.reduce("gpus", reduction)
        over_all = t.reduce((), reduction)
        with no_mesh.activate():
            parts = [data(r, dtype) for r in range(4)]
        for rank in range(4):
            host, gpu = divmod(rank, 2)
            pair = [parts[2 * host], parts[2 * host + 1]]
            for found, wanted in ((along, expected(pair, reduction)), (over_all, expected(parts, reduction))):
                got = inspect(found, hosts=host, gpus=gpu)
                assert got.dtype == dtype
                torch.testing.assert_close(got, wanted.to(dtype), rtol=2e-2 if dtype in (torch.bfloat16, torch.float16) else 1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.int16, torch.bfloat16, torch.complex64], ids=str)
def test_stack_and_exchange(four, dtype):
    with four.activate() as mesh:
        t = on_mesh(mesh, dtype)
        stacked, exchanged = t.reduce("hosts", "stack"), t.reduce("hosts", "stack", scatter=True)
        assert stacked.shape == (2, 2, 3) and exchanged.shape == (2, 3)
        with no_mesh.activate():
            parts = [data(r, dtype) for r in range(4)]
        for rank in range(4):
            host, gpu = divmod(rank, 2)
            column = [parts[gpu], parts[2 + gpu]]
            assert inspect(stacked, hosts=host, gpus=gpu).tolist() == [p.tolist() for p in column]
            assert inspect(exchanged, hosts=host, gpus=gpu).tolist() == [p[host].tolist() for p in column]


def test_reduce_scatter(four):
    with four.activate() as mesh:
        t = on_mesh(mesh, torch.float32)
        out = t.reduce("gpus", "sum", scatter=True)
        assert out.shape == (3,)
        for rank in range(4):
            host, gpu = divmod(rank, 2)
            with no_mesh.activate():
                wanted = (data(2 * host, torch.float32) + data(2 * host + 1, torch.float32))[gpu]
            assert inspect(out, hosts=host, gpus=gpu).tolist() == wanted.tolist()


def test_results_on_a_part_of_the_mesh(four):
    with four.activate() as mesh:
        part = mesh.slice(gpus=1)
        t = mesh.process_idx()
        total, both = t.reduce("gpus", mesh=part), t.reduce("gpus", "stack", mesh=part)
        assert total.mesh == part
        with part.activate():
            assert [inspect(total + 0, hosts=h).item() for h in (0, 1)] == [1, 5]
            assert [inspect(both, hosts=h).tolist() for h in (0, 1)] == [[0, 1], [2, 3]]
        before = mesh.controller.workers.size_of_table.call().get().values()
        del total, both
        mesh.check()
        after = mesh.controller.workers.size_of_table.call().get().values()
        assert [b - a for a, b in zip(after, before, strict=True)] == [0, 2, 0, 2]
        with pytest.raises(ValueError, match=r"is not a part of .* without gpus: expected the dimensions \(hosts=2\)"):
            t.reduce("gpus", mesh=mesh)
        with pytest.raises(ValueError, match="is not a part"):
            t.reduce("gpus", mesh=mesh.slice(hosts=0))


def test_in_place_and_out(mesh):
    t = torch.ones(2, 2) + mesh.rank("gpus")
    view, out = t[0], torch.zeros(2, 2)
    assert t.reduce_("gpus") is t
    assert inspect(view, gpus=1).tolist() == [3.0, 3.0]
    assert t.reduce("gpus", out=out) is out
    assert inspect(out).tolist() == [[6.0, 6.0], [6.0, 6.0]]
    with pytest.raises(ValueError, match=r"reduce: out is float32\[3\], expected float32\[2, 2\]"):
        t.reduce("gpus", out=torch.ones(3))
    with pytest.raises(ValueError, match=r"the result is \[2, 2, 2\], and cannot be written to a tensor of \[2, 2\]"):
        t.reduce_("gpus", "stack")


def test_pytrees(mesh):
    made = reduce({"a": torch.ones(2), "b": [torch.ones(1), 3]}, "gpus")
    assert inspect(made["a"]).tolist() == [2.0, 2.0] and made["b"][1] == 3
    tensors = [torch.ones(1), torch.ones(2)]
    reduce_(tensors, "gpus")
    assert inspect(tensors[1]).tolist() == [2.0, 2.0]
    moved = to_mesh(slice_mesh({"a": mesh.rank("gpus")}, gpus=1), mesh)
    assert inspect(moved["a"], gpus=0).item() == 1


@pytest.mark.parametrize(
    ("dims", "reduction", "options", "error", "text"),
    [
        ("gpu", "sum", {}, KeyError, "no dimension 'gpu', only 'gpus'"),
        (("gpus", "gpus"), "sum", {}, ValueError, "is named twice: 'gpus', 'gpus'"),
        ("gpus", "mean", {}, ValueError, "there is no reduction 'mean', only 'stack', 'sum'"),
        ("gpus", "sum", {"scatter": True}, ValueError, r"expected \[2, 4\], got \[3, 4\]"),
        ("gpus", "stack", {"scatter": True}, ValueError, r"expected \[2, 4\], got \[3, 4\]"),
    ],
)
def test_invalid_reduction_is_refused(mesh, dims, reduction, options, error, text):
    with pytest.raises(error, match=text):
        torch.ones(3, 4).reduce(dims, reduction, **options)


def test_several_dimensions_go_without_stack_and_scatter_only(four):
    with four.activate():
        for options in ({"reduction": "stack"}, {"scatter": True}):
            with pytest.raises(ValueError, match="goes over one dimension, not over 2"):
                torch.ones(2).reduce(("hosts", "gpus"), **options)


def test_tensors_without_elements(mesh):
    assert inspect(torch.ones(0, 2).reduce("gpus")).shape == (0, 2)
    assert inspect(torch.ones(0, 2).reduce("gpus", "stack")).shape == (2, 0, 2)


def test_tensors_with_any_strides(mesh):
    t = torch.arange(6.0).reshape(2, 3).t()
    assert inspect(t.reduce("gpus")).tolist() == [[0.0, 6.0], [2.0, 8.0], [4.0, 10.0]]
    t.reduce_("gpus")
    assert inspect(t).tolist() == [[0.0, 6.0], [2.0, 8.0], [4.0, 10.0]]


def test_point_to_point_and_broadcast(four):
    with four.activate() as mesh:
        idx = mesh.process_idx()
        row0, row1 = mesh.slice(hosts=0), mesh.slice(hosts=1)
        there = idx.slice_mesh(hosts=0).to_mesh(row1)
        assert there.mesh == row1
        assert [inspect(there, gpus=g).item() for g in (0, 1)] == [0, 1]
        back = there.to_mesh(row0)
        assert [inspect(back, gpus=g).item() for g in (0, 1)] == [0, 1]
        everywhere = idx.slice_mesh(hosts=1, gpus=1).to_mesh(mesh)
        assert [inspect(everywhere, hosts=h, gpus=g).item() for h in (0, 1) for g in (0, 1)] == [3, 3, 3, 3]
        along = idx.slice_mesh(gpus=0).to_mesh(mesh)
        assert [inspect(along, hosts=h, gpus=g).item() for h in (0, 1) for g in (0, 1)] == [0, 0, 2, 2]
        same = idx.to_mesh(mesh)
        same.add_(1)
        assert [inspect(idx, hosts=h, gpus=g).item() for h in (0, 1) for g in (0, 1)] == [0, 1, 2, 3]
        shifted = [idx.slice_mesh(gpus=g).to_mesh(mesh.slice(gpus=1 - g)) for g in (0, 1)]
        assert [inspect(shifted[0], hosts=h).item() for h in (0, 1)] == [0, 2]
        with pytest.raises(ValueError, match="has no dimension 'hosts', which the tensor's"):
            idx.to_mesh(row0)
        with pytest.raises(ValueError, match="dimension 'gpus' has size 2 in .*, and 1 in"):
            idx.slice_mesh(hosts=0).to_mesh(mesh.slice(hosts=0, gpus=slice(0, 1)))


@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.int16, torch.complex64, torch.uint8], ids=str)
def test_any_type_moves(mesh, dtype):
    t = (torch.arange(4) + 3 * mesh.rank("gpus")).to(dtype)
    there = t.slice_mesh(gpus=1).to_mesh(mesh)
    with no_mesh.activate():
        wanted = (torch.arange(4) + 3).to(dtype)
    assert inspect(there, gpus=0).tolist() == wanted.tolist()
    scalar = (mesh.rank("gpus") + 3).to(dtype).slice_mesh(gpus=1).to_mesh(mesh)
    with no_mesh.activate():
        assert inspect(scalar).item() == torch.tensor(4).to(dtype).item()


def test_between_procs_of_two_controllers(procs):
    other = this_host().spawn_procs({"gpus": 2, "copies": 2})
    with procs.activate() as mesh:
        t = torch.arange(5.0) + mesh.rank("gpus")
        flag = torch.ones((), dtype=torch.bool)
        bad = torch.linalg.cholesky(torch.eye(2) * (1 - 2 * mesh.rank("gpus")))
        there, few, worse = t.to_mesh(other), to_mesh([flag, torch.ones(0, 2)], other), bad.to_mesh(other)
        t.add_(100)
    with other.activate() as target:
        assert there.mesh == target
        for gpu in (0, 1):
            for copy in (0, 1):
                assert inspect(there + 1, gpus=gpu, copies=copy).tolist() == [1.0 + gpu + i for i in range(5)]
        assert inspect(few[0]).item() is True and inspect(few[1]).shape == (0, 2)
        assert inspect(worse, gpus=0, copies=1).tolist() == [[1.0, 0.0], [0.0, 1.0]]
        with pytest.raises(RemoteException, match="positive-definite") as e:
            inspect(worse, gpus=1)
        # The line is that of the operation which failed, on the other mesh.
        assert e.value.controller_frames[0].function == "test_between_procs_of_two_controllers"
        assert "cholesky" in linecache.getline(__file__, e.value.controller_frames[0].line)
        back = (there * 2).slice_mesh(copies=1).to_mesh(procs)
    with procs.activate():
        assert inspect(back, gpus=1).tolist() == [2.0, 4.0, 6.0, 8.0, 10.0]
        mesh.check()
    other.stop().get(60)


@remote(propagate=lambda t: t)
def only_on_the_first(t):
    if os.environ["RANK"] != "0":
        raise ValueError("rank 1 has none")
    return t


@pytest.mark.parametrize("size", [1, 100_000])
@pytest.mark.parametrize("reduction", ["stack", "sum", "avg", "product", "min", "max", "band", "bor", "bxor"])
def test_rank_without_data_fails_the_reduction(mesh, reduction, size):
    """With data as small as travel with a marker, and with large ones; the group goes on afterwards."""
    dtype = torch.int32 if reduction.startswith("b") else torch.float32
    t = torch.full((size,), 2, dtype=dtype)
    found = only_on_the_first(t).reduce("gpus", reduction)
    for rank in range(2):
        with pytest.raises(RemoteException, match="ValueError: rank 1 has none"):
            inspect(found, gpus=rank)
    expected = {"stack": 2, "sum": 4, "avg": 2, "product": 4, "min": 2, "max": 2, "band": 2, "bor": 2, "bxor": 0}[reduction]
    assert inspect(t.reduce("gpus", reduction)).flatten()[0] == expected
