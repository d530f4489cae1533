"""What ordinary programs do with tensors, activations and functions, beside the calls that the pages show."""

import signal
import threading

import numpy
import pytest
import torch

from monarch import tensor
from monarch.actor import SupervisionError, this_host
from monarch.tensor import RemoteException, Stream, TensorMeshError, compile, fetch_shard, get_active_mesh, inspect, no_mesh, remote

pytestmark = pytest.mark.timeout(180)


@pytest.mark.parametrize("leave", [SystemExit, KeyboardInterrupt])
def test_function_that_ends_the_interpreter_fails_alone(mesh, leave):
    @remote(propagate=lambda x: x)
    def made(x):
        raise leave("done here")

    @remote
    def asked():
        raise leave("done here")

    with pytest.raises(RemoteException, match="done here"):
        inspect(made(torch.ones(2)))
    with pytest.raises(RemoteException, match="done here"):
        asked.call().get()
    assert inspect(torch.ones(2) + 1).tolist() == [2.0, 2.0]


@pytest.mark.parametrize("kind", ["reduce", "move"])
def test_worker_killed_during_collectives_ends_the_fetch(monkeypatch, kind):
    noticed = threading.Event()
    monkeypatch.setattr("monarch.actor.unhandled_fault_hook", lambda failure: noticed.set())
    own = this_host().spawn_procs({"gpus": 2})
    with own.activate() as mesh:
        rank = mesh.rank("gpus")

        @remote
        def die(rank):
            import os

            if int(rank) == 1:
                os.kill(os.getpid(), signal.SIGKILL)

        t = torch.ones(4)
        assert inspect(t.reduce("gpus")).tolist() == [2.0] * 4
        die(rank)
        for _ in range(40):
            t = t.reduce("gpus") if kind == "reduce" else t.slice_mesh(gpus=1).to_mesh(mesh)
        with pytest.raises((RemoteException, SupervisionError)):
            inspect(t)
    assert noticed.wait(60)


def test_mesh_memory_is_given_to_no_library(mesh):
    t = torch.ones(3)
    for give in (numpy.from_dlpack, torch.from_dlpack, numpy.asarray):
        with pytest.raises(TensorMeshError, match="inspect"):
            give(t)
    with pytest.raises(TensorMeshError, match=r"the format '\.4f'"):
        f"{t:.4f}"


def test_default_type_is_that_of_the_program(mesh):
    before = inspect(torch.zeros(2)).dtype
    torch.set_default_dtype(torch.float64)
    try:
        made = [torch.zeros(2), torch.ones(2) * 0.5, torch.rand(2), torch.arange(3) / 2]
        assert [t.dtype for t in made] == [inspect(t).dtype for t in made] == [torch.float64] * 4
    finally:
        torch.set_default_dtype(torch.float32)
    assert before == inspect(torch.zeros(2)).dtype == torch.float32


def test_recording_has_only_its_threads_commands(procs):
    with procs.activate():
        other, x = torch.zeros(1), torch.ones(1)
    begun, done = threading.Event(), threading.Event()

    def beside():
        with procs.activate():
            begun.wait(60)
            other.add_(1)
            done.set()

    thread = threading.Thread(target=beside)
    thread.start()

    @compile(verify=False)
    def step(x):
        y = x + 1
        begun.set()
        done.wait(60)
        return y * 2

    with procs.activate() as mesh:
        for _ in range(5):
            assert inspect(step(x)).item() == 4.0
        thread.join()
        assert inspect(other).item() == 1.0
        mesh.check()


def test_recorded_call_fetches_nothing(mesh):
    for fetch in (inspect, fetch_shard, lambda x: remote(lambda: 1).call(), lambda x: mesh.check()):

        @compile
        def step(x, fetch=fetch):
            fetch(x)
            return x + 1

        with pytest.raises(TensorMeshError, match="which a replay would not repeat"):
            step(torch.ones(1))
    assert inspect(torch.ones(1)).item() == 1.0


def test_borrow_ends_after_its_own_borrows(mesh):
    first, second = Stream("first"), Stream("second")
    owned = torch.ones(2)
    one, outer = first.borrow(owned, mutable=True)
    two, inner = second.borrow(one, mutable=True)
    with pytest.raises(TypeError, match="BORROWED: another stream has borrowed"):
        outer.drop()
    with second.activate():
        two.add_(1)
    inner.drop()
    with first.activate():
        one.add_(1)
    outer.drop()
    assert inspect(owned).tolist() == [3.0, 3.0]


def test_activations_end_in_the_reverse_order(procs):
    outer = procs.activate()
    mesh = outer.__enter__()
    inner = mesh.slice(gpus=0).activate()
    inner.__enter__()
    with pytest.raises(RuntimeError, match="reverse order"):
        outer.__exit__(None, None, None)
    assert get_active_mesh().sizes == {}
    inner.__exit__(None, None, None)
    assert get_active_mesh() is mesh
    outer.__exit__(None, None, None)
    with pytest.raises(TensorMeshError):
        get_active_mesh()


def test_lstm_runs(mesh):
    net = torch.nn.LSTM(3, 4, batch_first=True)
    with torch.no_grad():
        for p in net.parameters():
            p.fill_(0.1)
    x = torch.ones(2, 5, 3)
    with torch.no_grad():
        there = inspect(net(x)[0])
    with no_mesh.activate():
        local = torch.nn.LSTM(3, 4, batch_first=True)
        with torch.no_grad():
            for p in local.parameters():
                p.fill_(0.1)
            torch.testing.assert_close(there, local(torch.ones(2, 5, 3))[0])


@pytest.mark.parametrize("dims", [0, False, {}, 1.5, [1]])
def test_dimensions_are_names(mesh, dims):
    with pytest.raises(TypeError, match="names no dimensions"):
        torch.ones(2).reduce(dims)


def test_local_tensors_among_mesh_tensors_are_refused(mesh):
    with no_mesh.activate():
        local = torch.ones(2)
    for call in (
        lambda t: tensor.reduce(t, "gpus"),
        lambda t: tensor.reduce_(t, "gpus"),
        lambda t: tensor.to_mesh(t, mesh),
        lambda t: tensor.slice_mesh(t, gpus=0),
    ):
        for tree in (local, [torch.ones(2), local]):
            with pytest.raises(TypeError, match="LOCAL_TENSOR"):
                call(tree)


@pytest.mark.parametrize("name", ["Adam", "AdamW", "Adagrad", "NAdam", "RAdam", "Adamax", "ASGD"])
@pytest.mark.parametrize("foreach", [True, False])
def test_optimisers_agree_with_local_ones(mesh, name, foreach):
    def trained():
        p = torch.nn.Parameter(torch.arange(4.0))
        optimiser = getattr(torch.optim, name)([p], lr=0.1, foreach=foreach)
        for _ in range(3):
            optimiser.zero_grad()
            (p * p).sum().backward()
            optimiser.step()
        return p.detach()

    there = inspect(trained())
    with no_mesh.activate():
        torch.testing.assert_close(there, trained())


def test_capsules_of_dlpack_are_refused(mesh):
    with pytest.raises(RuntimeError, match="data pointer"):
        torch.utils.dlpack.to_dlpack(torch.ones(3))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_loader_with_workers_gives_local_tensors(procs):
    data = torch.arange(8.0)
    loader = iter(torch.utils.data.DataLoader(torch.utils.data.TensorDataset(data), batch_size=4, num_workers=1))
    with procs.activate():
        batches = [batch for (batch,) in loader]
        assert [type(batch) for batch in batches] == [torch.Tensor] * 2
        assert inspect(torch.tensor(batches[1].tolist()) + 1).tolist() == [5, 6, 7, 8]
    assert torch.equal(torch.cat(batches), data)


def test_tensor_loaded_in_an_activation_is_local(procs, tmp_path):
    path = tmp_path / "saved.pt"
    torch.save({"weight": torch.arange(3.0), "step": 2}, path)
    with procs.activate():
        loaded = torch.load(path)
        assert type(loaded["weight"]) is torch.Tensor and loaded["weight"].tolist() == [0, 1, 2]
        with pytest.raises(TensorMeshError, match="the storage of a mesh tensor is on the workers"):
            torch.ones(2).set_(loaded["weight"].untyped_storage(), 0, (2,), (1,))


def test_quantized_tensors_are_refused(mesh):
    with pytest.raises(TensorMeshError, match="quantized tensor"):
        torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)


def test_wrong_operand_of_a_movement_is_named(mesh):
    t = torch.ones(2)
    with pytest.raises(TypeError, match="is for `to_mesh`. Fetch the tensor itself"):
        inspect(t.slice_mesh(gpus=0))
    with pytest.raises(TypeError, match="stream is a Stream, not 'main'"):
        t.to_mesh(mesh, stream="main")
