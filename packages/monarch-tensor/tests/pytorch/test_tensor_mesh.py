"""Meshes: activation, slices, ranks, what torch does inside and outside."""

import copy
import gc
import threading
import weakref
from contextlib import contextmanager

import pytest
import torch

from monarch.actor import this_host, this_proc
from monarch.tensor import DeviceMesh, Stream, TensorMeshError, fetch_shard, get_active_mesh, inspect, no_mesh, remote

pytestmark = pytest.mark.timeout(180)


def shards(tensor):
    return [inspect(tensor, dict(zip(tensor.mesh.sizes, place, strict=True))) for place in _places(tensor.mesh)]


def _places(mesh):
    import itertools

    return itertools.product(*(range(n) for n in mesh.sizes.values()))


def test_torch_is_local_outside_an_activation(procs):
    before = torch.ones(2)
    with procs.activate() as mesh:
        assert get_active_mesh() is mesh
        inside = torch.ones(2) + 1
        assert inside.mesh == mesh
        with no_mesh.activate():
            local = torch.ones(2) + 1
    after = torch.ones(2)
    assert type(before) is type(local) is type(after) is torch.Tensor
    assert local.tolist() == [2.0, 2.0]
    with procs.activate():
        assert inspect(inside).tolist() == [2.0, 2.0]
    with pytest.raises(TensorMeshError, match=r"no mesh is active.*activate"):
        get_active_mesh()


def test_rank_tensors_differ_by_rank(four):
    with four.activate() as mesh:
        ranks = four.rank_tensors()
        assert set(ranks) == {"hosts", "gpus"}
        both = ranks["hosts"] * 10 + ranks["gpus"]
        assert [int(t) for t in shards(both)] == [0, 1, 10, 11]
        assert [int(t) for t in shards(mesh.process_idx())] == [0, 1, 2, 3]
        assert [int(t) for t in shards(mesh.rank(("gpus", "hosts")))] == [0, 2, 1, 3]
        assert [int(t) for t in shards(four.rank_tensor("gpus"))] == [0, 1, 0, 1]
        with pytest.raises(KeyError, match="no dimension 'gpu'"):
            mesh.rank("gpu")


def test_slices_splits_and_renames_are_meshes(four):
    with four.activate() as mesh:
        flat = mesh.flatten("all")
        assert (flat.sizes, [int(t) for t in shards(flat.rank("all"))]) == ({"all": 4}, [0, 1, 2, 3])
        split = flat.split(all=("dp", "pp", "tp"), pp=2, dp=1)
        assert split.sizes == {"dp": 1, "pp": 2, "tp": 2}
        column = mesh.slice(gpus=1)
        assert [int(t) for t in shards(column.rank("hosts"))] == [0, 1]
        with column.activate():
            there = torch.full((2,), 7.0) + column.rank("hosts")
            assert [t.tolist() for t in shards(there)] == [[7.0, 7.0], [8.0, 8.0]]
        with pytest.raises(TypeError, match="WRONG_MESH: this tensor is on DeviceMesh"):
            there + 1
        assert mesh.rename(gpus="tp").sizes == {"hosts": 2, "tp": 2}
        assert mesh.slice(gpus=0) == mesh.slice(gpus=0) != mesh.slice(gpus=1)
    row = four.slice(hosts=1)
    with row.activate() as part:
        assert isinstance(part, DeviceMesh) and part.controller is mesh.controller
        assert [int(t) for t in shards(part.rank("gpus"))] == [0, 1]


def test_worker_gets_its_ranks_in_the_environment(four):
    def variables():
        import os

        return [os.environ[k] for k in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")]

    with four.activate():
        found = remote(variables).call().get()
    assert [v for _, v in found] == [[str(r), str(r), "4", "4"] for r in range(4)]


def test_tensor_shows_its_known_properties(mesh):
    t = torch.ones(2, 3, requires_grad=True)
    text = "Tensor(shape=[2, 3], dtype=torch.float32, device='cpu', mesh=DeviceMesh(gpus=2), stream='main', requires_grad=True)"
    assert repr(t) == str(t) == f"{t}" == text
    assert (t.shape, t.dtype, t.device.type, t.mesh, t.stream.name, t.dropped) == ((2, 3), torch.float32, "cpu", mesh, "main", False)


def test_table_names_ranks_and_coordinates(four):
    lines = four.to_table().splitlines()
    assert lines[0] == "| rank | hosts | gpus | host |"
    assert [line.split(" | ")[:3] for line in lines[2:]] == [["| 0", "0", "0"], ["| 1", "0", "1"], ["| 2", "1", "0"], ["| 3", "1", "1"]]


def test_modules_and_optimisers_work_unchanged(mesh):
    torch.manual_seed(0)
    with no_mesh.activate():
        weights = {k: v.tolist() for k, v in torch.nn.Linear(3, 2).state_dict().items()}

    def trained(make):
        net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU(), torch.nn.LayerNorm(2))
        with torch.no_grad():
            for name in ("weight", "bias"):
                getattr(net[0], name).copy_(torch.tensor(weights[name]))
        optimiser = make(net.parameters())
        for step in range(3):
            optimiser.zero_grad()
            loss = (net(torch.arange(6.0).reshape(2, 3)) - step).pow(2).mean()
            loss.backward()
            optimiser.step()
        return loss.detach(), net[0].weight.detach()

    for make in (
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: torch.optim.Adam(p, lr=0.1),
        lambda p: torch.optim.AdamW(p, lr=0.1),
    ):
        there = [inspect(t, gpus=1) for t in trained(make)]
        with no_mesh.activate():
            here = trained(make)
        for one, other in zip(there, here, strict=True):
            torch.testing.assert_close(one, other)


def test_fetch_is_a_future_of_a_pytree(mesh):
    ranks = mesh.rank("gpus")
    future = fetch_shard({"a": ranks, "b": [ranks + 1, "text", 3]}, gpus=1)
    ranks.add_(100)
    found = future.get()
    assert (found["a"].item(), found["b"][0].item(), found["b"][1:]) == (1, 2, ["text", 3])
    assert fetch_shard("no tensor").get() == "no tensor"
    assert inspect([1, 2]) == [1, 2]
    with pytest.raises(KeyError, match="no dimension 'host'"):
        fetch_shard(ranks, host=0)
    with pytest.raises(IndexError, match=r"gpus=2 is not in .* expected 0 to 1"):
        fetch_shard(ranks, {"gpus": 2})


async def _awaited(tensor):
    return await fetch_shard(tensor)


def test_fetch_can_be_awaited(mesh):
    import asyncio

    t = torch.ones(2)
    assert asyncio.run(_awaited(t)).tolist() == [1.0, 1.0]
    assert fetch_shard(t).exception() is None


def test_two_controllers_do_not_nest(procs):
    other = this_host().spawn_procs({"gpus": 1})
    with procs.activate(), pytest.raises(TensorMeshError, match="two controllers"), other.activate():
        pass
    other.stop().get(60)


def test_this_proc_can_be_a_mesh():
    with this_proc().activate():
        assert inspect(torch.arange(3)).tolist() == [0, 1, 2]


def test_stopped_mesh_is_named():
    own = this_host().spawn_procs({"gpus": 1})
    with own.activate():
        t = torch.ones(2)
        assert inspect(t).tolist() == [1.0, 1.0]
    own.stop().get(60)
    with own.activate() if False else no_mesh.activate(), pytest.raises(Exception, match="stop"):
        inspect(t)


def test_controller_of_stopped_procs_leaves_no_thread():
    def flushers():
        return {t for t in threading.enumerate() if t.name == "monarch-tensor-flusher"}

    before = flushers()
    for _ in range(2):
        own = this_host().spawn_procs({"gpus": 1})
        with own.activate():
            assert inspect(torch.ones(1)).item() == 1.0
        own.stop().get(60)
    of_stopped = flushers() - before
    last = this_host().spawn_procs({"gpus": 1})
    with last.activate():
        for thread in of_stopped:
            thread.join(60)
            assert not thread.is_alive()
    last.stop().get(60)


def entries(mesh):
    mesh.check()
    return list(mesh.controller.workers.size_of_table.call().get().values())


@contextmanager
def no_collection():
    """But for those that the test asks for."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def test_collected_tensors_are_freed_on_the_workers(mesh):
    before = entries(mesh)
    x = torch.ones(10)
    for _ in range(1000):
        x = x + 1
    views = [x[i] for i in range(5)]
    assert entries(mesh) == [n + 6 for n in before]
    del x, views
    assert entries(mesh) == before


def test_tensors_collected_after_their_place_are_freed(mesh):
    before = entries(mesh)
    # The collector visits new objects in the order of their creation: the place comes first.
    with no_collection():
        with mesh.slice(gpus=1).activate():
            part = torch.ones(2)
        cycle = [part]
        cycle.append(cycle)
        del part, cycle
        assert entries(mesh) == [before[0], before[1] + 1]
        gc.collect()
        assert entries(mesh) == before


@pytest.mark.parametrize("use", [inspect, torch.neg])
def test_refused_call_holds_no_tensor(mesh, use):
    t = torch.ones(2)
    t.drop()
    handle = weakref.ref(t.__core__)
    with no_collection():
        with pytest.raises(TypeError, match="DROPPED"):
            use(t)
        del t
        assert handle() is None


def test_drop_frees_all_views_at_once(mesh):
    base = torch.zeros(4)
    view, copy = base[1:], base.clone()
    view.drop()
    assert base.dropped and view.dropped and not copy.dropped
    for use in (lambda: base + 1, lambda: view * 2, lambda: inspect(base)):
        with pytest.raises(TypeError, match=r"DROPPED: the memory .* was dropped at .*test_tensor_mesh.py"):
            use()
    assert inspect(copy).tolist() == [0.0] * 4
    base.drop()


def test_equal_slices_are_shown_with_their_ranks(four):
    with four.activate() as mesh:
        assert repr(mesh) == "DeviceMesh(hosts=2, gpus=2)"
        assert repr(mesh.slice(hosts=1)) == "DeviceMesh(gpus=2, ranks=[2, 3])"
        assert repr(mesh.slice(hosts=0, gpus=1)) == "DeviceMesh(ranks=[1])"


def test_repeated_coordinate_is_refused(procs):
    with procs.activate() as mesh:
        with pytest.raises(TypeError, match="coordinate 'gpus' is given twice"):
            inspect(mesh.rank("gpus"), {"gpus": 1}, gpus=0)


def test_shallow_copy_shares_the_memory(procs):
    with procs.activate():
        t = torch.zeros(2, requires_grad=True)
        other = copy.copy(t)
        assert other is not t and other.requires_grad and other.is_leaf
        with torch.no_grad():
            other.add_(1)
        assert inspect(t.detach()).tolist() == [1.0, 1.0]


def test_copies_have_the_attributes_of_the_program(procs):
    with procs.activate():
        weight = torch.nn.Parameter(torch.ones(2))
        weight.tags = ["replicated"]
        weight.sum().backward()
        shallow, deep = copy.copy(weight), copy.deepcopy(weight)
        assert isinstance(shallow, torch.nn.Parameter) and shallow.tags is weight.tags
        assert isinstance(deep, torch.nn.Parameter) and deep.tags == weight.tags and deep.tags is not weight.tags
        weight.grad += 1
        assert inspect(deep.grad).tolist() == [1.0, 1.0]


def test_other_mesh_of_equal_shape_is_named(procs):
    other = this_host().spawn_procs({"gpus": 2})
    with procs.activate():
        t = torch.ones(2)
    with other.activate(), pytest.raises(TypeError, match=r"the operation is on DeviceMesh\(gpus=2\), another one of this shape"):
        t + 1
    other.stop().get(120)


def test_unsupported_operation_names_the_remedy(procs):
    with no_mesh.activate():
        local = torch.ones(2)
    with procs.activate():
        with pytest.raises(TensorMeshError, match=r"aten._pin_memory.default: .*`remote\(propagate="):
            torch.ones(2).pin_memory()
        with pytest.raises(TypeError, match="LOCAL_TENSOR"):
            Stream("beside").borrow(local)
        with pytest.raises(TensorMeshError, match="the storage of a mesh tensor is on the workers"):
            torch.ones(2).share_memory_()
