"""Mesh tensors while no mesh is active: operations on them run where they are."""

import pytest
import torch

from monarch import tensor as mt
from monarch.actor import Actor, endpoint, this_host
from monarch.tensor import OpaqueModule, OpaqueObject, Stream, TensorMeshError, call_on_shard_and_fetch, fetch_shard, inspect, remote

pytestmark = pytest.mark.timeout(180)


class Linear(Actor):
    @endpoint(propagate=lambda x: x)
    def forward(self, x):
        return x + 1

    @endpoint
    def total(self, x):
        return x.sum().item()


@remote(propagate=lambda x: x)
def doubled(x):
    return x * 2


@remote
def total(x, *_):
    return x.sum().item()


def made(procs, value=1.0):
    with procs.activate() as mesh:
        return torch.full((2, 2), value) + mesh.rank("gpus")


def test_operations_run_on_the_tensors_own_mesh(procs):
    t = made(procs)
    out = torch.relu(t[0] @ t.T - 1)
    assert (out.mesh, out.stream) == (t.mesh, t.stream)
    assert [inspect(out, gpus=rank).tolist() for rank in range(2)] == [[1.0, 1.0], [7.0, 7.0]]
    t.mul_(2)
    assert [fetch_shard(torch.cat([t, t.detach()]).sum(), gpus=rank).get().item() for rank in range(2)] == [16.0, 32.0]
    assert type(torch.ones(2)) is torch.Tensor


def test_slices_of_a_mesh_keep_their_results(four):
    with four.activate() as mesh, mesh.slice(hosts=1).activate():
        part = torch.ones(2) + mesh.slice(hosts=1).rank("gpus")
    with four.activate() as mesh:
        whole = torch.ones(2)
        with mt.no_mesh.activate():
            assert inspect(part + 1, gpus=1).tolist() == [3.0, 3.0]
            assert inspect(whole + 1).tolist() == [2.0, 2.0]
    with pytest.raises(TypeError, match=r"aten.add.Tensor\(float32\[2\], WRONG_MESH\)\nWRONG_MESH: this tensor is on DeviceMesh\(hosts=2"):
        part + whole


def test_operations_run_in_the_tensors_own_stream(procs):
    beside = Stream("beside")
    with procs.activate(), beside.activate():
        t = torch.ones(2)
    assert (t + 1).stream is beside
    with beside.activate():
        assert inspect(t + 1).tolist() == [2.0, 2.0]
    with Stream("other").activate(), pytest.raises(TypeError, match="WRONG_STREAM: this tensor is of stream beside"):
        t + 1
    with pytest.raises(TypeError, match="WRONG_STREAM"):
        made(procs)[0] + t


def test_local_and_dropped_operands_are_refused_outside(procs):
    t = made(procs)
    with pytest.raises(TypeError, match="LOCAL_TENSOR"):
        t + torch.ones(2)
    with pytest.raises(TensorMeshError, match="item"):
        t.sum().item()
    t.drop()
    with pytest.raises(TypeError, match="DROPPED"):
        t + 1


def test_module_is_trained_outside(procs):
    def steps(x, y, net):
        optimiser = torch.optim.Adam(net.parameters(), lr=0.1)
        for _ in range(3):
            optimiser.zero_grad()
            loss = (net(x) - y).pow(2).mean()
            loss.backward()
            optimiser.step()
        return loss.detach()

    def given():
        net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU(), torch.nn.Linear(2, 1))
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.fill_(0.5)
        return torch.eye(3), torch.ones(3, 1), net

    with procs.activate():
        there = given()
    torch.testing.assert_close(inspect(steps(*there), gpus=1), steps(*given()))


def test_gradients_of_functions_outside(procs):
    @mt.grad_function
    def summed(value):
        return value.reduce("gpus", "sum"), lambda gradient: gradient.reduce("gpus", "sum")

    t = made(procs).requires_grad_()
    summed(t * 2).sum().backward()
    assert inspect(t.grad).tolist() == [[4.0, 4.0], [4.0, 4.0]]
    [gradient] = mt.grad_generator((t * 3).sum(), [t])
    assert inspect(gradient).tolist() == [[3.0, 3.0], [3.0, 3.0]]


def test_remote_functions_run_where_their_tensors_are(procs):
    t = made(procs)
    assert inspect(doubled(t), gpus=1).tolist() == [[4.0, 4.0], [4.0, 4.0]]
    assert list(total.call(t).get().values()) == [4.0, 8.0]
    assert call_on_shard_and_fetch(total, t, shard={"gpus": 1}).get() == 8.0
    with procs.activate() as mesh:
        group = mesh.process_group("gpus")
    assert remote(lambda g: g.size()).call(group).get().item(gpus=0) == 2
    with pytest.raises(TensorMeshError, match="requires an active proc_mesh"):
        total.call(torch.ones(2))


def test_objects_are_used_outside(procs):
    with procs.activate():
        queue, layer, x = OpaqueObject("collections.deque", [1, 2]), OpaqueModule("torch.nn.Linear", 2, 1), torch.ones(2)
    queue.call_method("append", None, 3)
    assert queue.call_method_on_shard_and_fetch("pop").get() == 3
    layer(x).sum().backward()
    assert inspect(layer.parameters()[0].grad).tolist() == [[1.0, 1.0]]


def test_endpoints_return_tensors_outside(procs):
    t = made(procs)
    linear = procs.spawn("linear", Linear)
    assert inspect(torch.relu(linear.forward.rref(t)), gpus=1).tolist() == [[3.0, 3.0], [3.0, 3.0]]
    assert list(linear.total.call(t[0]).get().values()) == [2.0, 4.0]
    other = this_host().spawn_procs({"gpus": 1})
    try:
        with pytest.raises(ValueError, match="is on other procs than the mesh of the call"):
            other.spawn("stranger", Linear).forward.rref(t)
    finally:
        other.stop().get()
