"""Handles of actors: their attributes, the right to stop them, names."""

from __future__ import annotations

import threading

import pytest
from mesh_actors import Counter, Probe

from monarch.actor import Actor, ActorMesh, SpawnError, SupervisionError, endpoint, this_host, this_proc


class Mixed(Actor):
    CONSTANT = 3

    def __init__(self, gate=None):
        self.calls = []

    @endpoint
    def one(self, x):
        self.calls.append(x)
        return x

    def plain(self, x):
        return -x

    @property
    def prop(self):
        return 1


class NeverReady(Actor):
    """Its `__init__` waits for a message from outside."""

    def __init__(self, port):
        from monarch.actor import Channel

        mine, receiver = Channel.open()
        port.send(mine)
        self.word = receiver.recv().get()

    @endpoint
    def said(self):
        return self.word


@pytest.fixture(scope="module")
def procs():
    with this_host().spawn_procs({"hosts": 2, "gpus": 2}) as mesh:
        yield mesh


def test_attributes(procs):
    handle = procs.spawn("mixed", Mixed)
    assert handle.__name__ == "Mixed"
    with pytest.raises(RuntimeError, match=r"Actor Mixed\.plain is not annotated as an endpoint\."):
        handle.plain(1)
    with pytest.raises(AttributeError, match="nothing"):
        handle.nothing  # noqa: B018
    with pytest.raises(AttributeError):
        handle.attribute = 1
    assert not hasattr(handle, "__wrapped__")
    assert "Mixed" in repr(handle)


def test_dir_lists_the_endpoints(procs):
    """The completion of interactive shells needs this."""
    handle = procs.spawn("mixed", Mixed)
    for some in (handle, handle.slice(hosts=0)):
        assert {"one", "slice", "size", "stop", "initialized"} <= set(dir(some))
        # The names that the handle would refuse are missing.
        assert not {"plain", "prop", "CONSTANT"} & set(dir(some))


def test_actor_mesh_can_be_subscripted(procs):
    def of(handle: ActorMesh[Mixed]) -> ActorMesh[Mixed]:
        return handle

    assert ActorMesh[Mixed] is ActorMesh
    assert isinstance(of(procs.spawn("mixed", Mixed)), ActorMesh)


def test_slices_call_their_part(procs):
    handle = procs.spawn("mixed", Mixed)
    assert list(handle.slice(hosts=1).one.call(5).get().values()) == [5, 5]
    assert handle.slice(hosts=1, gpus=1).one.call_one(6).get() == 6
    with pytest.raises(ValueError, match="call_one requires exactly 1 actor, but mesh has 4"):
        handle.one.call_one(1)
    empty = handle.slice(gpus=slice(2, 2))
    assert len(empty.one.call(1).get()) == 0
    assert list(empty.one.stream(1)) == []
    with pytest.raises(ValueError):
        empty.one.choose(1)
    empty.one.broadcast(1)


def test_shapes_of_results_follow_the_called_mesh(procs):
    handle = procs.spawn("mixed", Mixed)
    found = handle.slice(gpus=slice(1, None)).one.call(1).get()
    assert found.sizes == {"hosts": 2, "gpus": 1}
    assert [dict(p) for p, _ in found.items()] == [{"hosts": 0, "gpus": 0}, {"hosts": 1, "gpus": 0}]
    assert handle.split(gpus=("a", "b"), a=2).one.call(1).get().sizes == {"hosts": 2, "a": 2, "b": 1}
    assert handle.rename(gpus="ranks").one.call(1).get().sizes == {"hosts": 2, "ranks": 2}


def test_references_cannot_stop(procs):
    handle = procs.spawn("mixed", Mixed)
    for reference in (handle.slice(gpus=0), handle.flatten("all")):
        with pytest.raises(NotImplementedError, match="Cannot call stop on an ActorMeshRef, requires an owned ActorMesh"):
            reference.stop()


def test_stop(procs):
    handle = procs.spawn("mixed", Mixed)
    reference = handle.slice(gpus=0)
    futures = [handle.one.call(i) for i in range(20)]
    assert handle.stop("enough").get() is None
    assert [list(f.get().values()) for f in futures] == [[i] * 4 for i in range(20)]
    assert handle.stop().get() is None
    for use in (handle, reference):
        with pytest.raises(SupervisionError, match=r"Endpoint call mixed\.one\(\) failed, .*has status: stopped: enough"):
            use.one.call(1).get()
    with pytest.raises(SupervisionError, match="stopped"):
        handle.one.broadcast(1)
    assert list(procs.spawn("mixed", Mixed).one.call(1).get().values()) == [1] * 4


def test_initialized(procs):
    handle = procs.spawn("mixed", Mixed)
    assert handle.initialized.get() is None
    assert handle.slice(gpus=1).initialized.get() is None


def test_initialized_does_not_wait_for_init(procs):
    from monarch.actor import Channel

    port, receiver = Channel.open()
    handle = procs.slice(hosts=0, gpus=0).spawn("never", NeverReady, port)
    assert handle.initialized.get() is None
    future = handle.said.call_one()
    receiver.recv().get().send("go")
    assert future.get() == "go"


def test_endless_init_blocks_no_other_actor(procs):
    from monarch.actor import Channel
    from monarch.config import configured

    port, receiver = Channel.open()
    with configured(stop_grace_period="100ms", stop_actor_timeout="200ms"):
        with this_host().spawn_procs() as mesh:
            stuck = mesh.spawn("stuck", NeverReady, port)
            receiver.recv().get()
            assert mesh.spawn("other", Counter).add.call_one().get() == 1
            stuck.stop().exception()


def test_initialized_of_a_mesh_that_cannot_be():
    from monarch.actor import BootstrapCommand

    mesh = this_host().spawn_procs(bootstrap_command=BootstrapCommand("/bin/false"))
    handle = mesh.spawn("counter", Counter)
    with pytest.raises(SpawnError, match="error spawning actor mesh counter: .*non-zero code 1"):
        handle.initialized.get()
    with pytest.raises(SpawnError):
        mesh.initialized.get()
    with pytest.raises(SupervisionError):
        handle.add.call_one().get()


def test_names(procs):
    for name, label in [
        ("Plain", "plain"),
        ("With Space", "withspace"),
        ("üß", "nil"),
        ("", "nil"),
        ("a" * 70, "a" * 63),
        ("x_1-2", "x_1-2"),
    ]:
        handle = procs.slice(hosts=0, gpus=0).spawn(name, Probe)
        assert handle._name.get().rpartition("-")[0] == label
        assert f"Probe {name}>" in handle.evaluate.call_one("str(context().actor_instance)").get()
        handle.stop().get()


def test_equal_names_are_different_actors(procs):
    one = procs.slice(hosts=0, gpus=0).spawn("same", Counter)
    two = procs.slice(hosts=0, gpus=0).spawn("same", Counter)
    assert (one.add.call_one().get(), one.add.call_one().get(), two.add.call_one().get()) == (1, 2, 1)
    assert one._name.get() != two._name.get()


def test_errors_of_spawn_raise_there(procs):
    with pytest.raises(TypeError):
        procs.spawn("counter", Counter, 1, 2)
    with pytest.raises(TypeError):
        procs.spawn("counter", Counter, unknown=1)
    with pytest.raises(TypeError, match="lock"):
        procs.spawn("counter", Counter, threading.Lock())
    with pytest.raises(ValueError, match="must subclass"):
        procs.spawn("int", int)
    assert list(procs.spawn("counter", Counter, start=1).add.call().get().values()) == [2] * 4


def test_arguments_of_spawn_are_a_snapshot(procs):
    data = bytearray(b"x" * 200_000)
    probe = procs.spawn("probe", Probe, data)
    data[:] = b"y" * 200_000
    found = probe.kept_values.call().get()
    assert {bytes(v[0][:2]) for v in found.values()} == {b"xx"}


def test_actor_runs_in_the_clients_process():
    here = this_proc().spawn("here", Counter)
    assert here.sizes == {}
    assert here.initialized.get() is None
    assert here.add.call_one().get() == 1
    assert list(here.add.call().get().values()) == [2]
    here.stop().get()


class Special(Actor):
    """An endpoint whose name Python could look for itself."""

    @endpoint
    def __dispatch__(self, x):
        return x + 1


def test_special_name_can_be_an_endpoint(procs):
    handle = procs.spawn("special", Special)
    assert list(handle.__dispatch__.call(1).get().values()) == [2] * 4
    assert handle.slice(hosts=0, gpus=1).__dispatch__.call_one(2).get() == 3
    assert not hasattr(handle, "__other__")
    # A handle without fields, as `copy` makes it.
    assert not hasattr(object.__new__(ActorMesh), "__dispatch__")


def test_class_of_the_actors_is_public(procs):
    handle = procs.spawn("mixed", Mixed)
    assert handle.actor_class is handle.slice(hosts=0).actor_class is Mixed
    # The name in torchmonarch 0.7.
    assert handle._class is Mixed


def test_class_that_cannot_be_imported_is_an_error(procs):
    handle = procs.spawn("mixed", Mixed)
    info = handle.__core__.info
    info.cls, info.payload = None, b"cmonarch.actor\nNothing\n."
    with pytest.raises(AttributeError, match="Nothing"):
        handle.actor_class  # noqa: B018
    assert not hasattr(handle, "__dispatch__")
    info.cls = Mixed


class Occupied(Actor):
    @endpoint
    def actor_class(self):
        return 1


def test_endpoint_cannot_hide_the_class(procs):
    with pytest.raises(ValueError, match=r"Occupied\.actor_class: ActorMesh has an attribute that collides"):
        procs.spawn("occupied", Occupied)
