"""Mesh tensors as arguments and results of ordinary actors."""

import gc
import io
import os
import pickle
import signal
import threading
import time

import pytest
import torch

from monarch import tensor as mt
from monarch.actor import Actor, ActorError, Port, SupervisionError, as_endpoint, endpoint, this_host
from monarch.tensor import RemoteException, TensorMeshError, inspect
from monarch.tensor._worker import handoff

pytestmark = pytest.mark.timeout(180)


class Holder(Actor):
    """Does something with tensors of its proc."""

    def __init__(self):
        self.factor = 1.0
        self.kept = None

    @endpoint
    def read(self, *args, **kwargs):
        return args, kwargs

    @endpoint
    def kinds(self, t):
        return type(t) is torch.Tensor, t.requires_grad

    @endpoint
    def add(self, t, value):
        t.add_(value)

    @endpoint
    def add_late(self, t, value):
        time.sleep(0.1)  # sleeps: longer than what comes after it takes
        t.add_(value)

    @endpoint
    def read_late(self, *tensors):
        time.sleep(0.1)  # sleeps: longer than what comes after it takes
        return [t.tolist() for t in tensors]

    @endpoint
    def keep(self, t):
        self.kept = t

    @endpoint
    def add_to_kept(self, value):
        self.kept.add_(value)

    @endpoint
    def set(self, factor):
        self.factor = factor

    @endpoint(propagate=lambda t, **_: (t, None))
    def scaled(self, t, extra=0.0):
        return t * self.factor + extra, None

    @endpoint(propagate="inspect")
    def nonzero(self, t):
        return {"found": t.nonzero(), "factor": self.factor}

    @endpoint(propagate=lambda *_: torch.empty(2))
    def fails(self, *_):
        raise ValueError("not today")

    @endpoint(propagate="inspect")
    def fails_inspected(self):
        raise ValueError("not today")

    @endpoint(propagate=lambda t: t)
    def other_shape(self, t):
        return t[:1]

    @endpoint
    def plain(self, t):
        return t

    @endpoint(propagate="cached")
    def cached(self, t):
        return t

    @endpoint(propagate=lambda t: t, explicit_response_port=True)
    def by_port(self, port: Port, t):
        port.send(t.sum().item())

    @endpoint(propagate=lambda: torch.empty(1))
    def dies(self):
        os.kill(os.getpid(), signal.SIGKILL)

    def method(self, t):
        return t.tolist()

    def add_late_by_name(self, t, value):
        time.sleep(0.1)  # sleeps: longer than what comes after it takes
        t.add_(value)


class AsyncHolder(Actor):
    """The same with async endpoints."""

    @endpoint
    async def read(self, t):
        return t.tolist()

    @endpoint(propagate=lambda t: t)
    async def doubled(self, t):
        return t * 2

    @endpoint(propagate=lambda t: t)
    async def fails(self, t):
        raise ValueError("not today")


@pytest.fixture(scope="module")
def actors(procs):
    return procs.spawn("holder", Holder)


def values(future):
    return list(future.get().values())


def table(mesh):
    gc.collect()
    mesh.check()
    return values(mesh.controller.workers.size_of_table.call())


# Arguments


def test_each_actor_gets_the_tensor_of_its_rank(mesh, actors):
    t = mesh.rank("gpus") * torch.ones(2)
    [(args, kwargs), (args1, _)] = values(actors.read.call(t, [t + 1], lambda: 3, key={"a": t}))
    assert args[0].tolist() == [0, 0] and args[1][0].tolist() == [1, 1] and kwargs["key"]["a"].tolist() == [0, 0]
    assert args1[0].tolist() == [1, 1]
    assert values(actors.kinds.call(t)) == [(True, False)] * 2


def test_every_adverb_takes_tensors(mesh, actors):
    t = mesh.rank("gpus") * torch.ones(1)
    one = actors.slice(gpus=1)
    assert one.read.call_one(t).get()[0][0].item() == 1
    assert actors.read.choose(t).get()[0][0].item() in (0, 1)
    assert sorted(f.get()[0][0].item() for f in actors.read.stream(t)) == [0, 1]
    actors.keep.broadcast(t)
    actors.add_to_kept.call(5).get()
    assert inspect(t, gpus=1).tolist() == [6]
    assert values(as_endpoint(actors.method).call(t)) == [[5], [6]]
    assert values(actors.by_port.call(t)) == [5, 6]
    # Tensors that were handed over are in no table any more, on no rank.
    del t
    actors.keep.call(None).get()
    assert table(mesh) == [0, 0]


def test_actor_and_worker_share_memory(mesh, actors):
    t = torch.zeros(4)
    actors.add.call(t[1:3], 7).get()
    assert inspect(t).tolist() == [0, 7, 7, 0]


def test_commands_after_a_message_run_after_it(mesh, actors):
    t, other = torch.ones(2), torch.zeros(2)
    found = actors.read_late.call(t, other)
    t.add_(1000)
    other.drop()
    assert values(found) == [[[1, 1], [0, 0]]] * 2
    for send in (actors.add_late.broadcast, actors.add_late.call, actors.add_late.stream, as_endpoint(actors.add_late_by_name).broadcast):
        t = torch.ones(2)
        send(t, 6)
        assert inspect(t * 1).tolist() == [7, 7]
    t = torch.ones(2)
    actors.slice(gpus=1).add_late.choose(t, 6)
    assert [inspect(t * 1, gpus=rank).tolist() for rank in range(2)] == [[1, 1], [7, 7]]


def test_stream_continues_after_failed_messages(procs, monkeypatch):
    """It fails, its actor fails, it cannot be sent."""
    noticed = threading.Event()
    monkeypatch.setattr("monarch.actor.unhandled_fault_hook", lambda failure: noticed.set())
    mortal = procs.spawn("mortal", Holder)
    mortal.set.call(1.0).get()
    with procs.activate() as mesh:
        with pytest.raises(ActorError):
            mortal.add.call(torch.ones(2), "no number").get()
        with pytest.raises(TypeError, match="generator"):
            mortal.read.call(torch.ones(2), (i for i in range(3)))
        mortal.add.broadcast(torch.ones(2), "no number")
        assert noticed.wait(60)
        t = torch.ones(2)
        with pytest.raises(SupervisionError):
            mortal.add.call(t, 1).get()
        assert inspect(t + 1).tolist() == [2, 2]
        mesh.check()


def test_actor_sees_earlier_commands(mesh, actors):
    t = torch.zeros(256, 256)
    for _ in range(100):
        t = t + 1
    assert values(actors.read.call(t[0, 0]))[1][0][0] == 100
    with mt.Stream("other").activate():
        other = torch.ones(2)
        assert values(actors.read.call(other))[0][0][0].tolist() == [1, 1]
    with mt.coalescing():
        assert values(actors.read.call(torch.ones(1) + 1))[0][0][0].item() == 2


def test_tensors_outside_of_an_activation(procs, actors):
    with procs.activate():
        t = torch.ones(2)
    assert values(actors.read.call(t))[1][0][0].tolist() == [1, 1]


class Constructed(Actor):
    """Keeps what it was given, and may fail of it."""

    def __init__(self, t, *, label, fail=False):
        if fail:
            raise ValueError(f"{label} has no use for {t.tolist()}")
        self.t = t
        self.at_begin = t.tolist()

    @endpoint
    def read(self):
        return self.at_begin, self.t.tolist()


def test_actors_are_constructed_with_their_shards(mesh, procs):
    t = torch.ones(2) + mesh.rank("gpus")
    built = procs.spawn("constructed", Constructed, t, label="n")
    t.add_(10)
    mesh.check()
    assert values(built.read.call()) == [([1.0, 1.0], [11.0, 11.0]), ([2.0, 2.0], [12.0, 12.0])]
    with mesh.slice(gpus=1).activate():
        part = torch.full((1,), 7.0)
    assert procs.slice(gpus=1).spawn("part", Constructed, part, label="n").read.call_one().get() == ([7.0], [7.0])
    with pytest.raises(ValueError, match="given to 2 actors, and 1 of them are on procs that have no shard"):
        procs.spawn("other", Constructed, part, label="n")
    with pytest.raises(TypeError, match="REQUIRES_GRAD"):
        procs.spawn("graph", Constructed, torch.ones(1, requires_grad=True), label="n")


def test_actor_that_cannot_be_constructed_blocks_no_stream(monkeypatch):
    noticed = threading.Semaphore(0)
    monkeypatch.setattr("monarch.actor.unhandled_fault_hook", lambda failure: noticed.release())
    procs = this_host().spawn_procs({"gpus": 2})
    with procs.activate() as mesh:
        t = torch.ones(2)
        failed = procs.spawn("failed", Constructed, t, label="n", fail=True)
        assert inspect(t + 1, gpus=1).tolist() == [2.0, 2.0]
        with pytest.raises(SupervisionError, match=r"n has no use for \[1.0, 1.0\]"):
            failed.read.call().get()
        bad = procs.spawn("poisoned", Constructed, torch.linalg.cholesky(-torch.eye(2)), label="n")
        with pytest.raises(SupervisionError, match="cholesky"):
            bad.read.call().get()
        with pytest.raises(RemoteException, match="cholesky"):
            mesh.check()
        assert inspect(t).tolist() == [1.0, 1.0]
    procs.stop().get()


def test_async_actors(mesh, procs):
    actors = procs.spawn("async_holder", AsyncHolder)
    t = mesh.rank("gpus") * torch.ones(1)
    assert values(actors.read.call(t)) == [[0], [1]]
    assert inspect(actors.doubled.rref(t + 1), gpus=1).tolist() == [4]
    with pytest.raises(RemoteException, match="not today"):
        inspect(actors.fails.rref(t))


def test_poisoned_tensor_fails_the_call(procs, actors):
    with procs.activate() as mesh:
        bad = torch.linalg.cholesky(-torch.eye(2)) + 1
        with pytest.raises(ActorError, match="cholesky"):
            actors.read.call(bad).get()
        with pytest.raises(RemoteException, match="cholesky"):
            mesh.check()
        assert values(actors.read.call(torch.ones(1)))[0][0][0].item() == 1


def test_actors_on_other_procs_are_refused(procs, actors):
    other = this_host().spawn_procs({"gpus": 1})
    try:
        stranger = other.spawn("stranger", Holder)
        stranger.set.call(1.0).get()
        with procs.activate() as mesh:
            t = torch.ones(2)
            with pytest.raises(ValueError, match="given to 1 actors, and 1 of them are on procs that have no shard"):
                stranger.read.call(t)
            with mesh.slice(gpus=1).activate():
                part = torch.ones(2)
            with pytest.raises(ValueError, match="given to 2 actors, and 1 of them"):
                actors.read.broadcast(part)
            assert actors.slice(gpus=1).read.call_one(part).get()[0][0].tolist() == [1, 1]
            del part
            assert len(set(table(mesh))) == 1
    finally:
        other.stop().get()


def test_tensors_that_cannot_be_given(mesh, actors):
    dropped, borrowed = torch.ones(2), torch.ones(2)
    dropped.drop()
    with pytest.raises(TypeError, match="DROPPED"):
        actors.read.call(dropped)
    with pytest.raises(TypeError, match="REQUIRES_GRAD"):
        actors.read.call([torch.ones(2, requires_grad=True)])
    with torch.no_grad():
        assert values(actors.kinds.call(torch.ones(2, requires_grad=True))) == [(True, False)] * 2
    _, borrow = mt.Stream("other").borrow(borrowed, mutable=True)
    with borrow, pytest.raises(TypeError, match="BORROWED"):
        actors.read.call(borrowed)


def test_message_that_cannot_be_sent_leaves_nothing(mesh, actors):
    before = table(mesh)
    with pytest.raises(TypeError, match="generator"):
        actors.read.call(torch.ones(2), (i for i in range(3)))
    assert table(mesh) == before


def test_pickling_outside_of_a_call_is_refused(mesh, procs):
    t = torch.ones(2)
    for use in (pickle.dumps, lambda v: torch.save(v, io.BytesIO())):
        with pytest.raises(TypeError, match="a mesh tensor cannot be pickled"):
            use(t)
    port, receiver = mt_port()
    with pytest.raises(TypeError, match="a mesh tensor cannot be pickled"):
        port.send(t)
    del receiver


def mt_port():
    from monarch.actor import Channel

    return Channel.open()


def test_process_without_a_worker_is_refused(monkeypatch):
    monkeypatch.setattr(handoff, "START_SECONDS", 0.01)
    with pytest.raises(ValueError, match="it: the proc of this actor has no shard of it"):
        handoff.taken("no session", 1, "it")
    handoff.closed("an ended session")
    with pytest.raises(ValueError, match="the worker of this proc has ended"):
        handoff.taken("an ended session", 1, "it")
    with pytest.raises(RuntimeError, match="the worker has ended"):
        handoff.received("an ended session", 1)


# Results


def test_results_become_tensors_of_the_mesh(mesh, actors):
    t = mesh.rank("gpus") * torch.ones(2)
    actors.set.broadcast(4.0)
    out, nothing = actors.scaled.rref(t, extra=1.0)
    actors.set.broadcast(1.0)
    assert nothing is None and out.shape == (2,) and out.mesh == mesh
    assert inspect(out + 1, gpus=1).tolist() == [6, 6]
    t.add_(1)
    assert inspect(out).tolist() == [1, 1]


def test_results_can_be_chained(mesh, actors):
    t = torch.ones(2)
    actors.set.broadcast(2.0)
    for _ in range(20):
        t, _ = actors.scaled.rref(t)
        t = t / 2
    assert inspect(t).tolist() == [1, 1]


def test_results_whose_shape_depends_on_data(mesh, actors):
    actors.set.broadcast(3.0)
    out = actors.nonzero.rref(torch.eye(3))
    assert out["factor"] == 3.0 and out["found"].shape == (3, 2) and inspect(out["found"])[2].tolist() == [2, 2]


def test_exception_of_an_endpoint_poisons_its_results(procs, actors):
    with procs.activate():
        out = actors.fails.rref(torch.ones(2))
        with pytest.raises(RemoteException, match="not today") as e:
            inspect(out + 1)
        assert e.value.operation == "holder.fails" and any("test_tensor_endpoints" in str(f) for f in e.value.controller_frames)
        with pytest.raises(RemoteException, match="not today"):
            actors.fails_inspected.rref()
        with pytest.raises(RemoteException, match=r"returned float32\[1\]"):
            inspect(actors.other_shape.rref(torch.ones(2)))
        with pytest.raises(RemoteException, match="cholesky"):
            inspect(actors.scaled.rref(torch.linalg.cholesky(-torch.eye(2)))[0])
        assert inspect(actors.scaled.rref(torch.zeros(2))[0]).tolist() == [0, 0]


def test_bad_calls_with_results(procs, actors):
    with pytest.raises(TensorMeshError, match="requires an active proc_mesh"):
        actors.scaled.rref(1)
    with procs.activate() as mesh:
        t = torch.ones(2)
        for method in ("plain", "cached"):
            with pytest.raises(ValueError, match=f"holder.{method}.rref: the endpoint has propagate="):
                getattr(actors, method).rref(t)
        with pytest.raises(TypeError, match="answers by a port"):
            actors.by_port.rref(t)
        with pytest.raises(ValueError, match="is on other procs than the mesh of the call"):
            actors.slice(gpus=0).scaled.rref(t)
        with mesh.slice(gpus=0).activate():
            with pytest.raises(TypeError, match="WRONG_MESH"):
                actors.slice(gpus=0).scaled.rref(t)
            assert inspect(actors.slice(gpus=0).scaled.rref(torch.zeros(2))[0]).tolist() == [0, 0]
        with pytest.raises(TypeError, match="missing a required argument"):
            actors.scaled.rref()


def test_stopped_actor_poisons_its_results():
    procs = this_host().spawn_procs({"gpus": 2})
    try:
        actors = procs.spawn("stopped", Holder)
        with procs.activate():
            actors.stop().get()
            out, _ = actors.scaled.rref(torch.ones(2))
            with pytest.raises(RemoteException, match="stop"):
                inspect(out)
            assert inspect(torch.ones(2)).tolist() == [1, 1]
    finally:
        procs.stop().get()


def test_proc_exit_in_an_endpoint_poisons_its_results(monkeypatch):
    noticed = threading.Semaphore(0)
    monkeypatch.setattr("monarch.actor.unhandled_fault_hook", lambda failure: noticed.release())
    procs = this_host().spawn_procs({"gpus": 2})
    actors = procs.spawn("dying", Holder)
    with procs.activate():
        out = actors.dies.rref()
        with pytest.raises((SupervisionError, RemoteException)):
            inspect(out)
    assert noticed.acquire(timeout=60)
    # Two meshes of two actors fail. Failures that an exception has shown before may be left out.
    for _ in range(3):
        noticed.acquire(timeout=5)
