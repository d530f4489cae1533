"""Objects and modules that live on the workers."""

import copy
import pickle

import pytest
import torch

from monarch import tensor as mt
from monarch.tensor import OpaqueModule, OpaqueObject, OpaqueRef, RemoteException, TensorMeshError, inspect, opaque_method, remote

pytestmark = pytest.mark.timeout(180)


class Counter:
    """Counts on each rank."""

    def __init__(self, start, tensor=None):
        if start < 0:
            raise ValueError(f"start is {start}")
        self.total = start if tensor is None else tensor + start

    def add(self, value):
        self.total = self.total + value
        return torch.as_tensor(self.total)

    def fields(self):
        return {"total": torch.as_tensor(self.total), "name": "counter"}

    def describe(self, suffix=""):
        return f"{int(self.total)}{suffix}"

    def forget(self):
        self.total = 0

    def twin(self):
        return OpaqueRef(Counter(int(self.total)))


class Wrapped(OpaqueObject):
    @opaque_method
    def add(self, value):
        return torch.empty(value.shape, dtype=value.dtype)


@remote(propagate=lambda start: OpaqueRef())
def new_list(start):
    return OpaqueRef([start])


@remote(propagate=lambda ref, value: torch.empty(()))
def append(ref, value):
    ref.value.append(value)
    return torch.tensor(float(len(ref.value)))


@remote
def replace(ref, value):
    ref.value = value


def test_remote_function_returns_an_opaque_object(mesh):
    ref = new_list(1)
    assert type(ref) is OpaqueRef and "gpus=2" in repr(ref)
    append(ref, 2.0)
    assert inspect(append(ref, torch.ones(2)), gpus=1) == 3.0
    replace(ref, [0] * 7)
    assert inspect(append(ref, 0)) == 8.0


def test_objects_among_other_results(mesh):
    @remote(propagate=lambda t: {"refs": [OpaqueRef(), OpaqueRef()], "t": t, "n": 4})
    def several(t):
        return {"refs": [OpaqueRef([]), OpaqueRef([1, 2])], "t": t + 1, "n": 5}

    out = several(torch.zeros(2))
    assert out["n"] == 4 and inspect(out["t"]).tolist() == [1, 1]
    assert inspect(append(out["refs"][0], 0)) == 1.0 and inspect(append(out["refs"][1], 0)) == 3.0


def test_objects_of_an_inspected_function(mesh):
    out, ref = remote(lambda: (torch.ones(3), OpaqueRef([1])), propagate="inspect")()
    assert out.shape == (3,) and inspect(append(ref, 0)) == 2.0


def test_value_is_not_on_the_controller(mesh):
    ref = new_list(1)
    with pytest.raises(TensorMeshError, match="is on the workers"):
        _ = ref.value
    with pytest.raises(TensorMeshError, match="set it in a remote function"):
        ref.value = 3
    for use in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="stays where it is"):
            use(ref)


def test_controller_reference_has_no_remote_object(mesh):
    local = OpaqueRef(5)
    assert local.value == 5
    with pytest.raises(TypeError, match="no worker has its value"):
        append(local, 1)


def test_object_of_another_mesh_is_refused(procs):
    with procs.activate() as mesh:
        ref = new_list(1)
        with mesh.slice(gpus=1).activate(), pytest.raises(TypeError, match="the call is on"):
            append(ref, 1)
        with mt.Stream("other").activate(), pytest.raises(TypeError, match="the call is on"):
            append(ref, 1)


@pytest.mark.parametrize(
    ("function", "propagate", "text"),
    [
        (lambda: torch.ones(2), lambda: OpaqueRef(), "returned Tensor as its result 0, and an OpaqueRef was propagated"),
        (lambda: OpaqueRef(1), lambda: torch.ones(2), r"returned an OpaqueRef as its result 0, and float32\[2\] was propagated"),
        (lambda: 3, lambda: OpaqueRef(), "returned 0 tensors, and 1 were propagated"),
    ],
)
def test_other_results_than_propagated_fail_the_call(procs, function, propagate, text):
    with procs.activate():
        ref = remote(function, propagate=propagate)()
        with pytest.raises(RemoteException, match=text):
            inspect(append(ref, 0) if isinstance(ref, OpaqueRef) else ref)


def test_entry_is_freed_with_the_last_reference(mesh):
    mesh.check()
    before = mesh.controller.workers.size_of_table.call().get().item(gpus=0)
    ref = OpaqueObject(Counter, 1)
    ref.call_method("forget", None)
    mesh.check()
    assert mesh.controller.workers.size_of_table.call().get().item(gpus=0) == before + 1
    del ref
    mesh.check()
    assert mesh.controller.workers.size_of_table.call().get().item(gpus=0) == before


# Objects


def test_methods_with_each_kind_of_propagation(mesh):
    counter = OpaqueObject(Counter, 10, tensor=mesh.rank("gpus"))
    assert inspect(counter.call_method("add", lambda value: value, torch.tensor(5)), gpus=1) == 16
    fields = counter.call_method("fields", "inspect")
    assert fields["name"] == "counter" and inspect(fields["total"]) == 15
    assert counter.call_method("describe", None) is None
    assert counter.call_method("forget", None) is None
    assert inspect(counter.call_method("add", lambda value: torch.empty((), dtype=torch.int64), 2)) == 2


def test_method_can_return_an_object(mesh):
    twin = OpaqueObject(Counter, 10).call_method("twin", lambda: OpaqueRef())

    @remote(propagate=lambda ref: torch.empty((), dtype=torch.int64))
    def total(ref):
        return torch.tensor(ref.value.total)

    assert inspect(total(twin)) == 10


def test_method_runs_on_one_rank_by_value(mesh):
    counter = OpaqueObject(Counter, 10, mesh.rank("gpus"))
    assert counter.call_method_on_shard_and_fetch("describe").get() == "10"
    assert counter.call_method_on_shard_and_fetch("describe", suffix="!", shard={"gpus": 1}).get() == "11!"
    with pytest.raises(RemoteException, match="no_such"):
        counter.call_method_on_shard_and_fetch("no_such").get()


def test_object_is_made_by_its_import_path(mesh):
    counter = OpaqueObject("collections.Counter", [1, 1, 2])
    assert counter.call_method_on_shard_and_fetch("most_common", 1).get() == [(1, 2)]


def test_opaque_methods_have_their_body_for_shapes(mesh):
    counter = Wrapped(Counter, 1)
    out = counter.add(torch.ones(3))
    assert out.shape == (3,) and inspect(out).tolist() == [2, 2, 2]
    assert inspect(counter.add(torch.ones(3)), gpus=1).tolist() == [3, 3, 3]


def test_failed_construction_poisons_the_object(procs):
    with procs.activate():
        counter = OpaqueObject(Counter, -1)
        with pytest.raises(RemoteException, match="start is -1"):
            inspect(counter.call_method("add", lambda value: value, torch.ones(1)))
        with pytest.raises(RemoteException, match="start is -1"):
            counter.call_method_on_shard_and_fetch("describe").get()
        missing = OpaqueObject("collections.no_such_class")
        with pytest.raises(RemoteException, match="no_such_class"):
            missing.call_method_on_shard_and_fetch("keys").get()


def test_failed_method_leaves_the_object_usable(procs):
    with procs.activate():
        counter = OpaqueObject(Counter, 1)
        with pytest.raises(RemoteException, match="no_such"):
            inspect(counter.call_method("no_such", lambda: torch.empty(1)))
        assert counter.call_method_on_shard_and_fetch("describe").get() == "1"


def test_bad_arguments_of_objects(procs):
    with pytest.raises(TensorMeshError, match="requires an active proc_mesh"):
        OpaqueObject(Counter, 1)
    with procs.activate():
        with pytest.raises(TypeError, match="expected a class, a function or an import path"):
            OpaqueObject(3)
        with pytest.raises(ValueError, match="an import path has a module and a name"):
            OpaqueObject("Counter")
        counter = OpaqueObject(Counter, 1)
        for propagation in ("cached", "mocked", "other", 3):
            with pytest.raises(ValueError, match="expected a function, 'inspect' or None"):
                counter.call_method("add", propagation, 1)
        with pytest.raises(TypeError, match="LOCAL_TENSOR"), mt.no_mesh.activate():
            local = torch.ones(1)
            with procs.activate():
                counter.call_method("add", lambda value: value, local)


# Modules


class Net(torch.nn.Module):
    """With a second result, a parameter that is not learned, and one that no call uses."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.linear = torch.nn.Linear(3, 2)
        self.scale = torch.nn.Parameter(torch.tensor(2.0), requires_grad=False)
        self.unused = torch.nn.Parameter(torch.ones(2))

    def forward(self, x, factor=1.0):
        return self.linear(x) * self.scale * factor

    def both(self, x):
        return {"out": self(x), "index": x.argmax(), "text": "t"}


def test_module_computes_like_the_local_one(mesh):
    with mt.no_mesh.activate():
        local = Net()
        x = torch.arange(6.0).reshape(2, 3).requires_grad_()
        expected = local(x, factor=3.0).pow(2).sum()
        expected.backward()
    module = OpaqueModule(Net)
    given = torch.arange(6.0).reshape(2, 3).requires_grad_()
    loss = module(given, factor=3.0).pow(2).sum()
    loss.backward()
    assert torch.allclose(inspect(loss.detach()), expected.detach())
    assert torch.allclose(inspect(given.grad, gpus=1), x.grad)
    scale, unused, weight, bias = module.parameters()
    assert not scale.requires_grad and scale.grad is None
    assert torch.allclose(inspect(weight.grad), local.linear.weight.grad)
    assert torch.allclose(inspect(bias.grad), local.linear.bias.grad)
    assert inspect(unused.grad).tolist() == [0, 0]


def test_controller_optimiser_trains_a_module(mesh):
    module = OpaqueModule("torch.nn.Linear", 3, 1)
    optimiser = torch.optim.SGD(module.parameters(), lr=0.05)
    x, y = torch.rand(8, 3), torch.rand(8, 1)
    losses = []
    for _ in range(5):
        loss = (module(x) - y).pow(2).mean()
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        losses.append(inspect(loss.detach()).item())
    assert losses == sorted(losses, reverse=True) and losses[0] > losses[-1]


def test_parameters_share_memory_with_the_module(mesh):
    module = OpaqueModule("torch.nn.Linear", 2, 2)
    weight, bias = module.parameters()
    assert module.parameters()[0] is weight and weight.requires_grad and weight.is_leaf
    with torch.no_grad():
        weight.zero_()
        bias.fill_(4)
        assert inspect(module(torch.rand(1, 2)), gpus=1).tolist() == [[4, 4]]


def test_module_without_gradients_has_no_parameters(mesh):
    module = OpaqueModule("torch.nn.ReLU")
    assert module.parameters() == []
    out = module(torch.tensor([-1.0, 2.0]))
    assert not out.requires_grad and inspect(out).tolist() == [0, 2]
    with torch.no_grad():
        assert not OpaqueModule(Net)(torch.ones(1, 3)).requires_grad


def test_shapes_are_asked_for_once_per_signature(mesh):
    module = OpaqueModule(Net)
    for rows in (1, 4, 1):
        assert module(torch.ones(rows, 3)).shape == (rows, 2)
    assert len(module._known) == 2


def test_methods_of_modules_have_gradients(mesh):
    module = OpaqueModule(Net)
    for propagation in ("inspect", lambda x: {"out": x.new_empty(2), "index": torch.empty((), dtype=torch.int64), "text": "t"}):
        x = torch.tensor([1.0, 3.0, 2.0]).requires_grad_()
        out = module.call_method("both", propagation, x)
        assert out["text"] == "t" and inspect(out["index"]) == 1 and not out["index"].requires_grad
        out["out"].sum().backward()
        assert x.grad.shape == (3,) and inspect(x.grad).abs().sum() > 0
    assert module.call_method("eval", None) is None
    assert module.call_method_on_shard_and_fetch("extra_repr").get() == ""
    with pytest.raises(ValueError, match="expected a function, 'inspect' or None"):
        module.call_method("both", "cached", torch.ones(3))


def test_graph_is_differentiated_once(procs):
    with procs.activate():
        x = torch.ones(1, 3).requires_grad_()
        out = OpaqueModule(Net)(x).sum()
        out.backward(retain_graph=True)
        assert inspect(x.grad).shape == (1, 3)
        [again] = torch.autograd.grad(out, x)
        with pytest.raises(RemoteException, match="backward through the graph a second time"):
            inspect(again)


def test_failed_module_call_leaves_the_module_usable(procs):
    with procs.activate():
        module = OpaqueModule(Net)
        with pytest.raises(RemoteException, match="shapes cannot be multiplied"):
            module(torch.ones(1, 4))
        assert module(torch.ones(1, 3)).shape == (1, 2)
