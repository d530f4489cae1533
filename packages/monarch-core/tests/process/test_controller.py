"""Controllers: one per job and name, in the client's process."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest
from fresh import lines, run
from mesh_actors import Counter

from monarch.actor import Actor, ActorError, Channel, endpoint, get_or_spawn_controller, this_host


class Asking(Actor):
    @endpoint
    def ask(self, name, *args):
        controller = get_or_spawn_controller(name, Counter, *args).get()
        return controller, controller.add.call_one().get(), controller.pid.call_one().get()


class AsyncAsking(Actor):
    @endpoint
    async def ask(self, name, *args):
        controller = await get_or_spawn_controller(name, Counter, *args)
        return await controller.add.call_one()


class Failing(Actor):
    def __init__(self, text):
        raise ValueError(text)

    @endpoint
    def anything(self):
        return 1


class Nested(Actor):
    """A controller that uses another one."""

    def __init__(self, other):
        self.counter = get_or_spawn_controller(other, Counter, 100).get()

    @endpoint
    def add(self):
        return self.counter.add.call_one().get()


@pytest.fixture(scope="module")
def procs():
    with this_host().spawn_procs({"gpus": 4}) as mesh:
        yield mesh


@pytest.fixture(scope="module")
def asking(procs):
    return procs.spawn("asking", Asking)


def test_controller_is_one_per_name():
    first = get_or_spawn_controller("one", Counter).get()
    assert first.add.call_one().get() == 1
    assert get_or_spawn_controller("one", Counter, 50).get().add.call_one().get() == 2
    assert get_or_spawn_controller("two", Counter, 50).get().add.call_one().get() == 51
    assert first.pid.call_one().get() == os.getpid()
    assert first.display.call_one().get() == "<root>.<mesh_actors.Counter one>"


def test_root_owns_controller_and_handles_are_references():
    with pytest.raises(NotImplementedError, match="Cannot call stop on an ActorMeshRef"):
        get_or_spawn_controller("one", Counter).get().stop()


def test_same_from_actors_and_client(asking):
    found = asking.ask.call("shared", 10).get()
    assert sorted(v[1] for v in found.values()) == [11, 12, 13, 14]
    assert {v[2] for v in found.values()} == {os.getpid()}
    assert get_or_spawn_controller("shared", Counter).get().add.call_one().get() == 15
    (handle, *_), *_ = found.values()
    assert handle.add.call_one().get() == 16


def test_same_from_async_actors(procs):
    asking = procs.spawn("async", AsyncAsking)
    assert sorted(asking.ask.call("from async").get().values()) == [1, 2, 3, 4]


def test_concurrent_requests_get_the_same(asking):
    gate = threading.Barrier(5)
    found = []

    def ask():
        gate.wait()
        found.append(get_or_spawn_controller("raced", Counter).get().add.call_one().get())

    threads = [threading.Thread(target=ask) for _ in range(4)]
    [t.start() for t in threads]
    gate.wait()
    theirs = [v[1] for v in asking.ask.call("raced").get().values()]
    [t.join() for t in threads]
    assert sorted([*found, *theirs]) == list(range(1, 9))


def test_await():
    async def main():
        controller = await get_or_spawn_controller("awaited", Counter)
        return await controller.add.call_one()

    assert asyncio.run(main()) == 1


def test_controller_that_uses_a_controller():
    nested = get_or_spawn_controller("nested", Nested, "inner").get()
    assert nested.add.call_one().get() == 101


def test_arguments_are_checked_at_once():
    with pytest.raises(TypeError):
        get_or_spawn_controller("never", Counter, 1, 2, 3)
    with pytest.raises(TypeError, match="lock"):
        get_or_spawn_controller("never", Counter, threading.Lock())
    with pytest.raises(ValueError, match="must subclass"):
        get_or_spawn_controller("never", int)
    assert get_or_spawn_controller("never", Counter, 5).get().add.call_one().get() == 6


def test_ports_and_handles_as_arguments(asking):
    port, receiver = Channel.open()
    controller = get_or_spawn_controller("with port", Keeper, port, asking).get()
    assert controller.use.call_one().get() == 4
    assert receiver.recv().get() == "used"


class Keeper(Actor):
    def __init__(self, port, mesh):
        self.port = port
        self.mesh = mesh

    @endpoint
    def use(self):
        self.port.send("used")
        return len(self.mesh)


@pytest.mark.parametrize("use", ["init", "endpoint", "broadcast"])
def test_failed_controller_does_not_affect_others(use):
    done = run(
        """
        import sys, time
        sys.path.insert(0, sys.argv[1])
        from eventually import eventually
        from test_controller import Failing
        from mesh_actors import Counter
        from monarch._core.process.current import current_process
        from monarch.actor import ActorError, SupervisionError, get_or_spawn_controller
        use = sys.argv[2]
        other = get_or_spawn_controller("other", Counter).get()
        if use == "init":
            actor = get_or_spawn_controller("actor_1", Failing, "in init").get()
        else:
            actor = get_or_spawn_controller("actor_1", Counter).get()
        if use == "broadcast":
            # Nobody waits for an answer; the main thread sees the end before the next call.
            actor.die.broadcast()
            process = current_process()
            eventually("a mesh failed", lambda: [m for m in process.meshes.owned.values() if m.info.failed])
        try:
            (actor.die if use == "endpoint" else actor.anything if use == "init" else actor.add).call_one().get()
        except SupervisionError as e:
            print("call failed")
        for _ in range(2):
            try:
                get_or_spawn_controller("actor_1", Counter).get()
            except ActorError as e:
                text = str(e)
                print("Failure on actor_1" in text, "ValueError: in init" in text or "SystemExit: 3" in text)
        print(other.add.call_one().get(), get_or_spawn_controller("new", Counter).get().add.call_one().get())
        """,
        os.path.dirname(__file__),
        use,
    )
    assert lines(done.stdout) == ["call failed", "True True", "True True", "1 1"]
    assert done.stderr == ""


def test_failed_controller_seen_from_an_actor(asking):
    controller = get_or_spawn_controller("to fail", Counter).get()
    with pytest.raises(RuntimeError, match="SystemExit"):
        controller.die.call_one().get()
    with pytest.raises(ActorError, match="Failure on to fail"):
        asking.slice(gpus=0).ask.call_one("to fail").get()
    assert asking.slice(gpus=0).ask.call_one("fine").get()[1] == 1


class Named(Actor):
    @endpoint
    def kind(self):
        return "first"


class Derived(Named):
    pass


def test_controller_of_another_class_is_refused(procs, asking):
    get_or_spawn_controller("named", Named).get()
    text = r"^controller 'named' is an actor of class test_controller\.Named, not of mesh_actors\.Counter$"
    for _ in range(2):
        with pytest.raises(TypeError, match=text):
            get_or_spawn_controller("named", Counter).get()
    with pytest.raises(ActorError, match=f"TypeError: {text[1:-1]}"):
        asking.slice(gpus=0).ask.call_one("named").get()
    assert get_or_spawn_controller("named", Named).get().kind.call_one().get() == "first"


def test_controller_of_a_subclass_is_found():
    get_or_spawn_controller("derived", Derived).get()
    assert get_or_spawn_controller("derived", Named).get().kind.call_one().get() == "first"
    get_or_spawn_controller("base", Named).get()
    with pytest.raises(TypeError, match=r"an actor of class test_controller\.Named, not of test_controller\.Derived$"):
        get_or_spawn_controller("base", Derived).get()


def test_controller_of_a_redefined_class_is_found():
    def define(module, answer):
        def kind(self):
            return answer

        return type("Redefined", (Actor,), {"__module__": module, "__qualname__": "Redefined", "kind": endpoint(kind)})

    get_or_spawn_controller("redefined", define("__main__", "old")).get()
    for module in ("__main__", "program"):
        assert get_or_spawn_controller("redefined", define(module, "new")).get().kind.call_one().get() == "old"
