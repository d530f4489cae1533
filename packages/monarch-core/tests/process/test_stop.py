"""Stopping: sent messages are handled, in order and within bounds; then owned meshes, clean-up, and the end."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest
from fresh_script import wait_for_end

from monarch.actor import (
    Actor,
    SupervisionError,
    concurrent_endpoint,
    context,
    current_rank,
    endpoint,
    get_active_proc_meshes,
    this_host,
    this_proc,
)
from monarch.config import configured


class Log(Actor):
    """Keeps the lines that other actors send."""

    def __init__(self):
        self.lines = []

    @endpoint
    def add(self, line):
        self.lines.append(line)

    @endpoint
    def read(self):
        return self.lines


class Worker(Actor):
    def __init__(self, log, name="worker"):
        self.log = log
        self.name = name
        self.gate = threading.Event()

    @endpoint
    def add(self, i):
        self.log.add.call_one(i).get()

    @endpoint
    def block(self):
        self.gate.wait()

    @endpoint
    def pid(self):
        return os.getpid()

    @endpoint
    def own(self, name, on_procs):
        where = this_host().spawn_procs() if on_procs else this_proc()
        self.owned = where.spawn(name, Worker, self.log, name)
        return self.owned.pid.call_one().get()

    @endpoint
    def own_deeper(self, name):
        return self.owned.own.call_one(name, True).get()

    def __cleanup__(self, exc):
        self.log.add.call_one(f"{self.name} cleaned up: {exc}").get()


class AsyncWorker(Actor):
    def __init__(self, log):
        self.log = log

    @endpoint
    async def add(self, i):
        await asyncio.sleep(0)
        await self.log.add.call_one(i)

    @endpoint
    async def block(self):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await self.log.add.call_one("endpoint cancelled")
            raise

    @concurrent_endpoint
    async def beside(self):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await self.log.add.call_one("concurrent cancelled")
            raise

    @endpoint
    async def task(self):
        async def body():
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await self.log.add.call_one("task cancelled")
                raise

        self.kept = asyncio.create_task(body())

    async def __cleanup__(self, exc):
        await self.log.add.call_one(f"cleaned up: {exc}")


@pytest.fixture(autouse=True)
def patient():
    """Even on a slow machine every drain completes; tests of the bounds set their own."""
    with configured(stop_grace_period="20s", stop_actor_timeout="25s"):
        yield


@pytest.fixture(scope="module")
def procs():
    with this_host().spawn_procs(per_host={"procs": 2}) as mesh:
        yield mesh


@pytest.fixture
def log(procs):
    return this_host_log()


def this_host_log():
    return this_proc().spawn("log", Log)


@pytest.mark.parametrize("kind", [Worker, AsyncWorker])
def test_drains_in_order_then_cleans_up(procs, log, kind):
    worker = procs.slice(procs=0).spawn("w", kind, log)
    for i in range(100):
        worker.add.broadcast(i)
    worker.stop().get()
    lines = log.read.call_one().get()
    assert lines[:100] == list(range(100))
    assert [str(line).replace("worker ", "") for line in lines[100:]] == ["cleaned up: None"]


def test_answers_of_drained_messages_arrive(procs, log):
    worker = procs.spawn("w", Worker, log)
    calls = [worker.pid.call() for _ in range(20)]
    stopped = worker.stop()
    assert all(len(set(call.get().values())) == 2 for call in calls)
    stopped.get()


def test_later_calls_are_refused(procs, log):
    worker = procs.spawn("w", Worker, log)
    worker.stop("enough").get()
    with pytest.raises(SupervisionError, match=r"(?s)actor .* has status: stopped: enough"):
        worker.pid.call().get()
    with pytest.raises(SupervisionError, match="enough"):
        worker.pid.broadcast()
    with pytest.raises(SupervisionError, match="enough"):
        worker.slice(procs=1).pid.call_one().get()


def test_stop_begins_when_called_and_only_once(procs, log):
    worker = procs.slice(procs=0).spawn("w", Worker, log)
    worker.pid.call_one().get()
    first, second = worker.stop(), worker.stop("again")
    assert first.get() is None and second.get() is None
    assert log.read.call_one().get() == ["worker cleaned up: None"]


def test_default_reason(procs, log):
    worker = procs.spawn("w", Worker, log)
    worker.stop().get()
    with pytest.raises(SupervisionError, match="stopped by client"):
        worker.pid.call().get()


def test_reference_cannot_stop(procs, log):
    worker = procs.spawn("w", Worker, log)
    with pytest.raises(NotImplementedError, match="Cannot call stop on an ActorMeshRef, requires an owned ActorMesh"):
        worker.slice(procs=0).stop()
    with pytest.raises(ValueError, match="ProcMesh is not owned; must be stopped by an owner"):
        procs.slice(procs=0).stop()
    worker.stop().get()


def test_caller_in_another_process_is_notified(procs, log):
    class Caller(Actor):
        @endpoint
        def call(self, worker):
            try:
                worker.pid.call_one().get()
            except SupervisionError as e:
                return str(e)
            return None

    worker = procs.slice(procs=0).spawn("w", Worker, log)
    caller = procs.slice(procs=1).spawn("caller", Caller)
    assert caller.call.call_one(worker).get() is None
    worker.stop("enough").get()
    assert "has status: stopped: enough" in caller.call.call_one(worker).get()
    caller.stop().get()


def test_sync_endpoint_that_does_not_end(procs, capfd):
    log = this_host_log()
    with configured(stop_grace_period="50ms"):
        worker = procs.slice(procs=0).spawn("w", Worker, log)
        blocked, waiting = worker.block.call_one(), worker.add.call_one(1)
        worker.stop().get()
    for call in (waiting, blocked):
        with pytest.raises(SupervisionError, match="stopped"):
            call.get(20)
    # An actor that never returns is not cleaned up either.
    assert log.read.call_one().get() == []
    # The line of the other process arrives at any time; here the line is this process's own.
    local = this_proc().spawn("local", Worker, log)
    local.pid.call_one().get()
    with configured(stop_grace_period="50ms"):
        local.block.broadcast()
        local.stop().get()
    assert "<root>.<test_stop.Worker local> is still in block after its time to stop was over" in capfd.readouterr().err


def test_async_endpoint_that_does_not_end(procs, log):
    with configured(stop_grace_period="50ms"):
        worker = procs.slice(procs=0).spawn("w", AsyncWorker, log)
        blocked, waiting = worker.block.call_one(), worker.add.call_one(1)
        worker.stop().get()
    for call in (waiting, blocked):
        with pytest.raises(SupervisionError, match="stopped"):
            call.get(20)
    assert log.read.call_one().get() == ["endpoint cancelled", "cleaned up: None"]


def test_order_of_the_end(procs, log):
    class Owner(AsyncWorker):
        @endpoint
        async def own(self):
            self.owned = this_proc().spawn("owned", Worker, self.log, "owned")
            await self.owned.pid.call_one()

    worker = procs.slice(procs=0).spawn("w", Owner, log)
    worker.task.call_one().get()
    worker.own.call_one().get()
    worker.beside.broadcast()
    worker.add.call_one("last").get()
    worker.stop().get()
    assert log.read.call_one().get() == ["last", "owned cleaned up: None", "concurrent cancelled", "cleaned up: None", "task cancelled"]


@pytest.mark.parametrize("on_procs", [False, True])
def test_owned_meshes_stop_depth_first(procs, log, on_procs):
    top = procs.slice(procs=0).spawn("top", Worker, log, "top")
    pids = [top.own.call_one("middle", on_procs).get(), top.own_deeper.call_one("bottom").get()]
    top.stop().get()
    assert log.read.call_one().get() == [f"{name} cleaned up: None" for name in ("bottom", "middle", "top")]
    # Processes that an actor owns end with it.
    assert all(wait_for_end(pid) for pid in pids[1 - on_procs :])


def test_init_that_never_returns_blocks_no_stop(procs):
    class Stuck(Actor):
        def __init__(self):
            threading.Event().wait()

        @endpoint
        def ask(self):
            pass

    with configured(stop_grace_period="50ms"):
        stuck = procs.spawn("stuck", Stuck)
        waiting = stuck.ask.call()
        stuck.stop().get()
    with pytest.raises(SupervisionError, match="stopped"):
        waiting.get(20)


def test_actor_stops_itself(procs, log):
    class Quitter(Worker):
        @endpoint
        def quit(self):
            context().actor_instance.stop("done here")

    # Only some ranks do so.
    class Half(Quitter):
        @endpoint
        def quit_one(self):
            if current_rank().rank == 0:
                context().actor_instance.stop("done here")

    quitter = procs.slice(procs=0).spawn("q", Quitter, log)
    quitter.quit.call_one().get()
    half = procs.spawn("half", Half, log)
    half.quit_one.call().get()
    assert half.slice(procs=1).pid.call_one().get()
    with pytest.raises(SupervisionError, match="done here"):
        while True:
            half.slice(procs=0).pid.call_one().get()
    half.stop().get()
    quitter.stop().get()
    assert len([line for line in log.read.call_one().get() if "cleaned up" in line]) == 3


def test_stopped_processes_are_gone(log):
    procs = this_host().spawn_procs(per_host={"procs": 3})
    worker = procs.spawn("w", Worker, log)
    pids = list(worker.pid.call().get().values())
    assert procs in get_active_proc_meshes()
    procs.stop("over").get()
    assert procs not in get_active_proc_meshes()
    assert all(wait_for_end(pid) for pid in pids)
    assert log.read.call_one().get() == ["worker cleaned up: None"] * 3
    assert procs.stop().get() is None
    with pytest.raises(RuntimeError, match="`ProcMesh` has already been stopped"):
        procs.spawn("late", Worker, log)
    with pytest.raises(SupervisionError, match=r"(?s)(The actor|Supervision event: actor) .*stopped: over"):
        worker.pid.call().get()


def test_context_managers(log):
    with this_host().spawn_procs() as procs:
        pid = procs.spawn("w", Worker, log).pid.call_one().get()
    assert wait_for_end(pid)

    async def main():
        async with this_host().spawn_procs() as procs:
            return await procs.spawn("w", Worker, log).pid.call_one()

    assert wait_for_end(asyncio.run(main()))


def test_host_stop_leaves_the_host_ready():
    host = this_host()
    before = host.spawn_procs(name="before")
    log = this_host_log()
    pid = before.spawn("w", Worker, log).pid.call_one().get()
    other = host.with_python_executable(__import__("sys").executable)
    mine = other.spawn_procs()
    mine_pid = mine.spawn("w", Worker, log).pid.call_one().get()
    other.stop().get()
    assert wait_for_end(mine_pid)
    assert other.stop().get() is None
    # The procs were spawned through another object, so this one does not stop them.
    assert before.spawn("x", Worker, log).pid.call_one().get() == pid
    again = other.spawn_procs()
    assert again.spawn("w", Worker, log).pid.call_one().get()
    other.shutdown().get()
    with pytest.raises(RuntimeError, match="HostMesh has already been shut down"):
        other.spawn_procs()
    with pytest.raises(RuntimeError, match="cannot shut down `HostMesh` that is a reference instead of owned"):
        __import__("pickle").loads(__import__("pickle").dumps(host)).shutdown()
    before.stop().get()


def test_stop_while_spawning():
    procs = this_host().spawn_procs(per_host={"procs": 4})
    log = this_host_log()
    worker = procs.spawn("w", Worker, log)
    worker.add.broadcast(1)
    # The grace period includes the time that a busy machine needs to start a process and to import this module there.
    with configured(stop_grace_period="20s", stop_actor_timeout="20s"):
        procs.stop().get()
    # The call was sent before the stop, so it is handled before the stop.
    assert sorted(map(str, log.read.call_one().get())) == ["1"] * 4 + ["worker cleaned up: None"] * 4


def test_stop_of_a_busy_process_kills_it(log):
    with configured(stop_grace_period="50ms", stop_actor_timeout="100ms", process_exit_timeout="100ms"):
        procs = this_host().spawn_procs()
        worker = procs.spawn("w", Worker, log)
        pid = worker.pid.call_one().get()
        blocked = worker.block.call_one()
        procs.stop().get()
    assert wait_for_end(pid)
    with pytest.raises(SupervisionError, match="stopped"):
        blocked.get()


def test_children_of_a_process_go_with_it():
    class Parent(Actor):
        @endpoint
        def start(self):
            import subprocess

            return subprocess.Popen(["sleep", "1000"]).pid

    procs = this_host().spawn_procs()
    pid = procs.spawn("p", Parent).start.call_one().get()
    procs.stop().get()
    assert wait_for_end(pid)
