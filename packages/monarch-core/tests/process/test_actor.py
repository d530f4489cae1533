"""Actor classes: the checks at spawn, the process and thread of an instance, the attributes of a handle."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest

from monarch.actor import (
    Actor,
    ActorError,
    ActorMesh,
    Channel,
    NotAnEndpoint,
    Port,
    SupervisionError,
    as_endpoint,
    concurrent_endpoint,
    context,
    current_rank,
    current_size,
    endpoint,
    this_host,
    this_proc,
)


@pytest.fixture(scope="module")
def procs(faults):
    mesh = this_host().spawn_procs(per_host={"gpus": 2})
    yield mesh
    mesh.stop().get()


class Sync(Actor):
    def __init__(self, start: int = 0, *, step: int = 1) -> None:
        self.value = start
        self.step = step
        self.thread = threading.get_ident()
        self.local = threading.local()
        self.local.mark = "init"
        self.born = (dict(current_rank()), current_size(), str(context().actor_instance))

    @endpoint
    def add(self, n: int = 0) -> int:
        self.value += n * self.step
        return self.value

    @endpoint
    def birth(self) -> Any:
        return self.born

    @endpoint
    def same_thread(self) -> bool:
        return self.thread == threading.get_ident() and self.local.mark == "init"

    @endpoint
    def has_loop(self) -> bool:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return False
        return True

    @endpoint
    def ask(self, other: Any) -> int:
        import warnings

        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return other.add.call_one(1).get()

    @endpoint
    def where(self) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
        return dict(current_rank()), current_size(), dict(context().actor_instance.rank)

    @endpoint
    def own_log(self) -> tuple[str, int]:
        return self.logger.name, self.logger.level

    @endpoint
    def misused(self) -> list[str]:
        """The members of handles that an instance refuses."""
        refused = []
        for name in ("slice", "split", "flatten", "rename", "size", "stop", "sizes", "extent", "initialized"):
            try:
                found = getattr(self, name)
                found()
            except NotImplementedError:
                refused.append(name)
        return refused

    def plain(self, n: int) -> int:
        return self.value + n

    def answer(self, port: Port[int], n: int) -> None:
        port.send(self.value + n)

    async def late(self) -> int:
        return 1

    constant = 5
    nothing = None


class Async(Actor):
    def __init__(self, start: int = 0) -> None:
        self.value = start
        self.thread = threading.get_ident()
        self.seen: list[str] = []
        self.gate = asyncio.Event()
        self.born = (dict(current_rank()), current_size(), str(context().actor_instance))

    @endpoint
    async def add(self, n: int = 0) -> int:
        self.value += n
        return self.value

    @endpoint
    async def birth(self) -> Any:
        return self.born

    @endpoint
    async def same_thread(self) -> bool:
        await asyncio.sleep(0)
        return self.thread == threading.get_ident()

    @endpoint
    async def slow(self, name: str, turns: int) -> list[str]:
        """Gives other tasks of the loop many turns between its two marks."""
        self.seen.append(f"{name} begins")
        for _ in range(turns):
            await asyncio.sleep(0)
        self.seen.append(f"{name} ends")
        return self.seen

    @endpoint
    async def loop_id(self) -> int:
        return id(asyncio.get_running_loop())

    @endpoint
    async def background(self) -> None:
        async def work() -> None:
            for i in range(3):
                await asyncio.sleep(0)
                self.seen.append(f"task {i}")
            self.gate.set()

        self.task = asyncio.create_task(work())

    @endpoint
    async def finished(self) -> list[str]:
        await self.gate.wait()
        return self.seen

    @endpoint
    async def where(self) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
        return dict(current_rank()), current_size(), dict(context().actor_instance.rank)

    @endpoint
    async def relay(self, other: Any, n: int) -> int:
        return await other.add.call_one(n)

    def plain(self, n: int) -> int:
        return self.value + n

    async def late(self, n: int) -> int:
        await asyncio.sleep(0)
        return self.value + n


BOTH = pytest.mark.parametrize("cls", [Sync, Async])


# ---- checks at spawn


def test_names_of_handle_attributes_are_refused(procs):
    for name in ("slice", "split", "flatten", "rename", "size", "sizes", "extent", "stop", "initialized", "_name", "_owned", "__core__"):
        cls = type("Named", (Actor,), {name: endpoint(lambda self: 1)})
        with pytest.raises(ValueError, match="ActorMesh has an attribute that collides with an endpoint name: " + name):
            procs.spawn("named", cls)


def test_mixed_endpoints_are_refused(procs):
    class Mixed(Actor):
        @endpoint
        def a(self) -> None: ...

        @endpoint
        async def b(self) -> None: ...

    class MixedConcurrent(Actor):
        @endpoint
        def a(self) -> None: ...

        @concurrent_endpoint
        async def b(self) -> None: ...

    for cls in (Mixed, MixedConcurrent):
        with pytest.raises(ValueError, match="mixes both async and sync"):
            procs.spawn("mixed", cls)


def test_generator_endpoints_are_refused(procs):
    class Plain(Actor):
        @endpoint
        def values(self) -> Any:
            yield 1

    class Async(Actor):
        @endpoint
        async def first(self) -> None: ...

        @endpoint
        async def values(self) -> Any:
            yield 1

    class WithPort(Actor):
        @endpoint(explicit_response_port=True)
        def values(self, port: Any) -> Any:
            yield port.send(1)

    for cls in (Plain, Async, WithPort):
        with pytest.raises(ValueError, match=rf"{cls.__name__}\.values is a generator, but an endpoint has one answer"):
            procs.spawn("generating", cls)


@pytest.mark.parametrize("hook", ["__cleanup__", "__supervise__", "_handle_undeliverable_message"])
def test_async_hook_of_sync_actor_is_refused(procs, hook):
    async def run(self, *_: Any) -> None: ...

    cls = type("Hooked", (Sync,), {hook: run})
    with pytest.raises(ValueError, match=f"has sync endpoints, but an async {hook}"):
        procs.spawn("hooked", cls)


def test_sync_hooks_of_async_actor(procs):
    class Cleaned(Async):
        def __cleanup__(self, exc: Exception | None) -> None: ...

    class Supervising(Async):
        def __supervise__(self, failure: Any) -> bool:
            return True

    with pytest.raises(ValueError, match="has async endpoints, but a synchronous __cleanup__"):
        procs.spawn("cleaned", Cleaned)
    assert procs.spawn("supervising", Supervising, 3).add.call(1).get().values() == [4, 4]


def test_anything_but_an_actor_class_is_refused(procs):
    for thing in (int, object, 5, "Sync", lambda: None, Sync.plain):
        with pytest.raises(ValueError, match="must subclass"):
            procs.spawn("thing", thing)


def test_arity_and_pickling_errors_raise_in_spawn(procs):
    class Bare(Actor):
        @endpoint
        def ping(self) -> int:
            return 1

    for args, kwargs in [((1, 2), {}), ((), {"unknown": 1}), ((1,), {"start": 2})]:
        with pytest.raises(TypeError):
            procs.spawn("wrong", Sync, *args, **kwargs)
    with pytest.raises(TypeError):
        procs.spawn("wrong", Bare, 1)
    with pytest.raises(TypeError, match="pickle"):
        procs.spawn("lock", Sync, threading.Lock())
    assert procs.spawn("bare", Bare).ping.call().get().values() == [1, 1]


def test_actor_without_endpoints_is_spawned_and_stopped(procs):
    class Silent(Actor):
        def __init__(self, port: Port[str]) -> None:
            port.send("built")

        def __cleanup__(self, exc: Exception | None) -> None: ...

    port, receiver = Channel.open()
    mesh = procs.slice(gpus=0).spawn("silent", Silent, port)
    assert receiver.recv().get() == "built"
    mesh.stop().get()


# ---- handles


@BOTH
def test_other_attributes_are_not_endpoints(procs, cls):
    handle = procs.spawn("worker", cls)
    assert isinstance(handle.plain, NotAnEndpoint)
    with pytest.raises(RuntimeError, match=rf"Actor {cls.__name__}\.plain is not annotated as an endpoint\..*as_endpoint"):
        handle.plain(1)
    with pytest.raises(AttributeError):
        _ = handle.unknown
    assert isinstance(handle, ActorMesh)


def test_plain_attributes_are_not_endpoints_either(procs):
    handle = procs.spawn("worker", Sync)
    assert isinstance(handle.constant, NotAnEndpoint)
    assert repr(handle.constant) == "<NotAnEndpoint Sync.constant>"


def test_endpoint_of_a_handle_shows_its_name(procs):
    handle = procs.spawn("worker", Sync)
    assert repr(handle.add) == "<Endpoint worker.add()>"


def test_public_attributes_of_handles_are_frozen():
    public = {name for name in dir(ActorMesh) if not name.startswith("_")}
    assert public == {"actor_class", "slice", "split", "flatten", "rename", "size", "sizes", "extent", "stop", "initialized"}


@BOTH
def test_as_endpoint(procs, cls):
    handle = procs.spawn("worker", cls, 10)
    assert as_endpoint(handle.plain).call(5).get().values() == [15, 15]
    with pytest.raises(TypeError):
        as_endpoint(handle.plain).call()
    for thing in (handle.add, handle, cls.plain, None):
        with pytest.raises(ValueError, match="expected an method of a spawned actor"):
            as_endpoint(thing)


def test_as_endpoint_with_a_port(procs):
    handle = procs.spawn("worker", Sync, 10)
    assert as_endpoint(handle.answer, explicit_response_port=True).call(1).get().values() == [11, 11]


def test_as_endpoint_of_an_async_method(procs):
    assert as_endpoint(procs.spawn("worker", Async, 2).late).call(1).get().values() == [3, 3]
    handle = procs.slice(gpus=0).spawn("worker", Sync)
    with pytest.raises(ActorError) as caught:
        as_endpoint(handle.late).call_one().get()
    assert isinstance(caught.value.exception, TypeError)
    assert handle.add.call_one(2).get() == 2


# ---- instances


@BOTH
def test_instance_is_built_with_the_arguments(procs, cls):
    assert procs.spawn("worker", cls, 3).add.call(4).get().values() == [7, 7]
    assert procs.spawn("worker", cls, start=3).add.call().get().values() == [3, 3]


@BOTH
def test_context_in_init_is_the_spawn_space(procs, cls):
    born = procs.spawn("worker", cls).birth.call().get().values()
    names = [f"<root>.<{cls.__module__}.{cls.__name__} worker{{'gpus': {r}/2}}>" for r in (0, 1)]
    assert born == [({"gpus": r}, {"gpus": 2}, names[r]) for r in (0, 1)]


@BOTH
def test_rank_is_that_of_the_addressed_slice(procs, cls):
    handle = procs.spawn("worker", cls)
    assert handle.where.call().get().values() == [({"gpus": r}, {"gpus": 2}, {"gpus": r}) for r in (0, 1)]
    assert handle.slice(gpus=1).where.call_one().get() == ({}, {}, {"gpus": 1})
    assert handle.slice(gpus=slice(1, 2)).where.call_one().get() == ({"gpus": 0}, {"gpus": 1}, {"gpus": 1})
    renamed = handle.rename(gpus="rank").where.call().get()
    assert renamed.values() == [({"rank": r}, {"rank": 2}, {"gpus": r}) for r in (0, 1)]
    assert handle.slice(gpus=slice(1, 2)).where.choose().get()[0] == {"gpus": 0}
    assert handle.where.call().get().values()[1] == ({"gpus": 1}, {"gpus": 2}, {"gpus": 1})


@BOTH
def test_thread_is_the_same_for_life(procs, cls):
    handle = procs.spawn("worker", cls)
    for _ in range(3):
        assert handle.same_thread.call().get().values() == [True, True]


def test_sync_endpoint_sees_no_loop_and_gets_quietly(procs):
    one, other = procs.slice(gpus=0).spawn("one", Sync), procs.slice(gpus=1).spawn("other", Sync, 5)
    assert one.has_loop.call_one().get() is False
    assert one.ask.call_one(other).get() == 6


def test_async_endpoints_do_not_interleave(procs):
    handle = procs.slice(gpus=0).spawn("worker", Async)
    futures = [handle.slow.call_one(name, turns) for name, turns in (("a", 50), ("b", 3), ("c", 0))]
    assert futures[2].get() == ["a begins", "a ends", "b begins", "b ends", "c begins", "c ends"]


def test_tasks_go_on_between_messages(procs):
    handle = procs.slice(gpus=0).spawn("worker", Async)
    handle.background.call_one().get()
    assert handle.finished.call_one().get() == ["task 0", "task 1", "task 2"]
    assert handle.loop_id.call_one().get() == handle.loop_id.call_one().get()


@BOTH
def test_actor_in_the_process_of_the_client(cls):
    handle = this_proc().spawn("local", cls, 1)
    assert handle.add.call_one(2).get() == 3
    assert handle.same_thread.call_one().get() is True
    handle.stop().get()
    with pytest.raises(SupervisionError, match="stopped"):
        handle.add.call_one(1).get()


def test_logger_of_the_class(procs):
    name, level = procs.slice(gpus=0).spawn("worker", Sync).own_log.call_one().get()
    assert name.endswith("Sync") and level == logging.DEBUG


def test_instance_has_no_members_of_handles(procs):
    handle = procs.slice(gpus=0).spawn("worker", Sync)
    assert len(handle.misused.call_one().get()) == 9


class Nester(Actor):
    def __init__(self) -> None:
        self.child = this_proc().spawn("child", Sync, 7)

    @endpoint
    def child_value(self) -> int:
        return self.child.add.call_one(1).get()

    @endpoint
    def child_name(self) -> str:
        return self.child.birth.call_one().get()[2]


def test_nested_spawn_in_init(procs):
    handle = procs.spawn("nester", Nester)
    assert handle.child_value.call().get().values() == [8, 8]
    name = handle.slice(gpus=1).child_name.call_one().get()
    assert name.startswith("<root>.<test_actor.Nester nester{'gpus': 1/2}>.<") and name.endswith(".Sync child>")


# ---- an `__init__` that never returns


class Stuck(Actor):
    """Passes a port and a child out, then blocks until its process ends or the port is fed."""

    def __init__(self, port: Port[Any]) -> None:
        mine, inbox = Channel.open()
        child = this_proc().spawn("child", Sync, 1)
        port.send((mine, child))
        self.got = inbox.recv().get()

    @endpoint
    def what(self) -> Any:
        return self.got


def test_init_that_blocks_wedges_nothing_else(procs):
    port, receiver = Channel.open()
    proc = procs.slice(gpus=0)
    stuck = proc.spawn("stuck", Stuck, port)
    mine, child = receiver.recv().get()
    assert child.add.call_one(1).get() == 2
    assert proc.spawn("other", Sync, 3).add.call_one().get() == 3
    pending = stuck.what.call_one()
    mine.send("go")
    assert pending.get() == "go"
    stuck.stop().get()


def test_stop_of_an_actor_whose_init_blocks():
    from monarch.config import configured

    mesh = this_host().spawn_procs()
    port, receiver = Channel.open()
    with configured(stop_grace_period="50ms", stop_actor_timeout="100ms"):
        stuck = mesh.spawn("stuck", Stuck, port)
        receiver.recv().get()
        pending = stuck.what.call_one()
        stuck.stop().get()
        with pytest.raises(SupervisionError, match="stopped"):
            pending.get()
        assert mesh.spawn("other", Sync, 3).add.call_one().get() == 3
        mesh.stop().get()
