"""Handles in messages: references, in order, also of meshes that do not exist yet."""

from __future__ import annotations

import copy
import pickle
from typing import NamedTuple

import cloudpickle
import pytest
from mesh_actors import Counter, Probe, Recorder

from monarch._core.call.actor_mesh import ActorMesh
from monarch._core.hosts.host_mesh import HostMesh
from monarch._core.hosts.proc_mesh import ProcMesh
from monarch.actor import Actor, SupervisionError, context, endpoint, this_host


class Caller(Actor):
    def __init__(self, *handles):
        self.handles = list(handles)

    @endpoint
    def add_through(self, counters):
        return list(counters.add.call().get().values())

    @endpoint
    def add_through_own(self):
        return [list(h.add.call().get().values()) for h in self.handles]

    @endpoint
    def same(self, a, b):
        return a == b, hash(a) == hash(b), a.__core__.info is b.__core__.info

    @endpoint
    def spawn_on(self, procs, start):
        counter = procs.spawn("counter", Counter, start)
        self.handles.append(counter)
        return counter

    @endpoint
    def spawn_procs_and_hand_out(self):
        self.procs = this_host().spawn_procs({"gpus": 2}, name="inner")
        return self.procs, self.procs.spawn("inner counter", Counter, 10)

    @endpoint
    def shape(self, mesh):
        return dict(mesh.sizes), mesh._name.get()

    @endpoint
    def me(self):
        return context().actor_instance.proc

    @endpoint
    def returned(self, value):
        return value

    @endpoint
    def value_mesh(self, counters):
        return counters.add.call().get()


@pytest.fixture(scope="module")
def procs():
    with this_host().spawn_procs({"hosts": 2, "gpus": 2}) as mesh:
        yield mesh


@pytest.fixture(scope="module")
def caller(procs):
    return procs.slice(hosts=0, gpus=0).spawn("caller", Caller)


def test_owned_handle_arrives_as_a_reference(procs, caller):
    counters = procs.spawn("counters", Counter)
    assert caller.add_through.call_one(counters).get() == [1] * 4
    assert caller.add_through.call_one(counters.slice(gpus=1)).get() == [2, 2]
    assert caller.add_through.call_one(counters.flatten("r").slice(r=slice(3, None))).get() == [3]
    assert list(counters.add.call(0).get().values()) == [1, 2, 1, 3]


def test_handles_deep_in_other_objects(procs, caller):
    counters = procs.spawn("counters", Counter)
    back = caller.same.call_one(*[{"x": [counters, (counters.slice(gpus=0),)]}["x"][0]] * 2).get()
    assert back == (True, True, True)
    probe = procs.slice(hosts=1, gpus=1).spawn("probe", Probe)
    nested = {"a": [counters, counters.slice(hosts=1)], "b": procs, "c": this_host()}
    found = probe.echo.call_one(nested).get()
    assert found == nested
    assert [type(found[k]) for k in "bc"] == [ProcMesh, HostMesh]
    with pytest.raises(NotImplementedError, match="ActorMeshRef"):
        found["a"][0].stop()


def test_pending_mesh_can_be_called_sliced_and_sent(caller):
    pending = this_host().spawn_procs({"gpus": 2})
    counters = pending.spawn("counters", Counter, 5)
    futures = [caller.add_through.call_one(counters), caller.add_through.call_one(counters.slice(gpus=1))]
    last = counters.add.call(0)
    assert [f.get() for f in futures] == [[6, 6], [7]]
    assert all(v in (5, 6, 7) for v in last.get().values())
    assert pickle.loads(pickle.dumps(counters)) == counters
    pending.stop().get()


def test_pending_proc_mesh_in_arguments(caller):
    pending = this_host().spawn_procs({"gpus": 2})
    counter = caller.spawn_on.call_one(pending, 3).get()
    assert list(counter.add.call().get().values()) == [4, 4]
    pending.stop().get()
    with pytest.raises(SupervisionError):
        counter.add.call().get()


def test_meshes_of_an_actor_handed_to_the_client(caller):
    procs, counters = caller.spawn_procs_and_hand_out.call_one().get()
    assert list(counters.add.call().get().values()) == [11, 11]
    mine = procs.spawn("mine", Counter, 20)
    assert list(mine.add.call().get().values()) == [21, 21]
    with pytest.raises(ValueError, match="not owned"):
        procs.stop()
    mine.stop().get()


def test_handle_as_an_argument_of_init(procs):
    counters = procs.slice(hosts=1).spawn("counters", Counter)
    caller = procs.slice(hosts=0, gpus=1).spawn("holds", Caller, counters, counters.slice(gpus=0))
    assert caller.add_through_own.call_one().get() == [[1, 1], [2]]


def test_shape_and_name_survive(procs, caller):
    counters = procs.spawn("Some Counters!", Counter)
    sizes, name = caller.shape.call_one(counters.slice(hosts=1)).get()
    assert (sizes, name) == ({"gpus": 2}, counters._name.get())
    assert name.startswith("somecounters-")


def test_value_mesh_as_a_result(procs, caller):
    counters = procs.spawn("counters", Counter)
    found = caller.value_mesh.call_one(counters).get()
    assert list(found.values()) == [1] * 4
    assert [dict(p) for p in (point for point, _ in found.items())] == [{"hosts": h, "gpus": g} for h in range(2) for g in range(2)]


def test_actor_can_be_sent_its_own_handle(procs):
    recorder = procs.slice(hosts=0, gpus=1).spawn("recorder", Recorder)
    recorder.put.call_one(recorder).get()
    (found,) = recorder.taken.call_one().get()
    assert found == recorder


def test_plain_and_cloud_pickles(procs):
    counters = procs.spawn("counters", Counter)
    for mesh in (counters, counters.slice(gpus=0), procs, procs.slice(hosts=1), this_host()):
        for dumps in (pickle.dumps, cloudpickle.dumps):
            assert pickle.loads(dumps(mesh)) == mesh
    assert list(pickle.loads(pickle.dumps(counters)).add.call().get().values()) == [1] * 4
    again = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(counters.slice(gpus=1)))))
    assert list(again.add.call().get().values()) == [2, 2]
    assert copy.deepcopy(counters) == counters


def test_class_by_value_travels_with_the_handle(procs, caller):
    class Local(Actor):
        def __init__(self):
            self.n = 0

        @endpoint
        def add(self):
            self.n += 1
            return self.n

    local = procs.spawn("local", Local)
    assert caller.add_through.call_one(local).get() == [1] * 4
    assert isinstance(pickle.loads(pickle.dumps(local)), ActorMesh)


def test_instances_with_slots_return(caller):
    class Plain:
        __slots__ = ("value",)

    class Derived(Plain):
        __slots__ = ("__own", "__weakref__")

        def __init__(self) -> None:
            self.__own = 2

        def own(self) -> int:
            return self.__own

    class Named(NamedTuple):
        value: int = 1

    class Marked:
        """Its slots are a mark that it got later."""

    Marked.__slots__ = ("value",)
    for cls in (Plain, Derived, Marked):
        sent = cls()
        sent.value = 1
        back = caller.returned.call_one(sent).get()
        assert type(back) is cls and back.value == 1
        if cls is Derived:
            assert back.own() == 2
    assert caller.returned.call_one(Named()).get() == Named()


def test_equality_of_references(procs):
    counters = procs.spawn("counters", Counter)
    other = procs.spawn("counters", Counter)
    assert counters == counters.slice()
    assert counters != other
    assert counters.slice(gpus=0) != counters.slice(gpus=1)
    assert len({counters, pickle.loads(pickle.dumps(counters)), other}) == 2


def test_own_proc_travels(caller, procs):
    proc = caller.me.call_one().get()
    assert proc == procs.slice(hosts=0, gpus=0)
    made = proc.spawn("made", Counter)
    assert made.add.call_one().get() == 1
    made.stop().get()
