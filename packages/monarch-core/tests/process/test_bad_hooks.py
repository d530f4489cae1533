"""Hooks of the user that raise, return invalid results, or do not return: `__supervise__` and `__cleanup__`."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from fresh_script import run
from supervision_actors import Child

from monarch.actor import Actor, Channel, MeshFailure, Port, SupervisionError, endpoint, this_host, this_proc
from monarch.config import configured

pytestmark = pytest.mark.usefixtures("fresh")


class NoTruth:
    def __bool__(self) -> bool:
        raise ArithmeticError("neither true nor false")


class NoLength:
    def __len__(self) -> int:
        return -1  # noqa: PLE0303


async def later() -> bool:
    return True


def answer(kind: str) -> Any:
    if kind == "array":
        import numpy

        return numpy.array([True, False])
    if kind == "coroutine":
        return later()
    if kind == "raises":
        raise LookupError("no idea")
    if kind == "exits":
        raise SystemExit(4)
    made = {"no truth": NoTruth(), "no length": NoLength(), "object": object(), "text": "yes", "number": 7, "empty": "", "nothing": None}
    return made[kind]


class Owner(Actor):
    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.child = this_proc().spawn("child", Child)

    @endpoint
    def handle(self) -> Any:
        return self.child

    def __supervise__(self, failure: MeshFailure) -> Any:
        return answer(self.kind)


class AsyncOwner(Actor):
    __init__ = Owner.__init__  # type: ignore[assignment]

    @endpoint
    async def handle(self) -> Any:
        return self.child  # type: ignore[attr-defined]

    async def __supervise__(self, failure: MeshFailure) -> Any:
        return answer(self.kind)  # type: ignore[attr-defined]


class MixedOwner(AsyncOwner):
    __supervise__ = Owner.__supervise__  # type: ignore[assignment]


ALL = pytest.mark.parametrize("cls", [Owner, AsyncOwner, MixedOwner])


@pytest.fixture(scope="module")
def procs(faults):
    with this_host().spawn_procs() as mesh:
        yield mesh


def fail_child(owner: Any) -> None:
    with pytest.raises(SupervisionError, match="SystemExit: 3"):
        owner.handle.call_one().get().fail.call_one().get()


# ---- __supervise__


@ALL
@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        ("no truth", "ArithmeticError: neither true nor false"),
        ("no length", r"ValueError: __len__\(\) should return >= 0"),
        ("array", "ValueError: The truth value of an array"),
        ("coroutine", "TypeError: __supervise__ returned coroutine .*, which is never awaited: define it with `async def`"),
        ("raises", "LookupError: no idea"),
        ("exits", "SystemExit: 4"),
    ],
)
def test_invalid_answer_of_a_hook_fails_the_owner(procs, faults, cls, kind, cause):
    owner = procs.spawn("owner", cls, kind)
    fail_child(owner)
    failure = faults.get()
    assert failure.name == "owner" and failure.cause.name == "child" and failure.reason.kind == "raised"
    lines = failure.report().split("\n")
    assert re.match(rf"The actor <root>\.<test_bad_hooks\.{cls.__name__} owner> and all its descendants have failed: {cause}", lines[0])
    at = lines.index("  This error occurred while handling another failure:")
    assert re.match(r"    The actor <root>\..* child> and all its descendants have failed: SystemExit: 3 \(pid", lines[at + 1])
    with pytest.raises(SupervisionError, match=cause):
        owner.handle.call_one().get()


@ALL
@pytest.mark.parametrize("kind", ["object", "text", "number"])
def test_truthy_answer_handles(procs, faults, cls, kind):
    owner = procs.spawn("owner", cls, kind)
    fail_child(owner)
    assert owner.handle.call_one().get() is not None and faults.empty()


@ALL
@pytest.mark.parametrize("kind", ["empty", "nothing"])
def test_falsy_answer_does_not(procs, faults, cls, kind):
    owner = procs.spawn("owner", cls, kind)
    fail_child(owner)
    failure = faults.get()
    assert failure.name == "owner" and failure.cause.name == "child" and "did not handle" in failure.report()


STUCK = """
from monarch.config import configure
from monarch.actor import Channel, SupervisionError
import asyncio
class Child(Actor):
    @endpoint
    def fail(self):
        raise SystemExit(3)
class Owner(Actor):
    def __init__(self, port):
        self.port = port
        self.child = this_proc().spawn("child", Child)
    @endpoint
    def begin(self):
        self.child.fail.broadcast()
    @endpoint
    def value(self):
        return 1
    def __supervise__(self, failure):
        self.port.send("in the hook")
        threading.Event().wait()
class Async(Owner):
    @endpoint
    async def begin(self):
        self.child.fail.broadcast()
    @endpoint
    async def value(self):
        return 1
class AsyncWaits(Async):
    async def __supervise__(self, failure):
        self.port.send("in the hook")
        await asyncio.Event().wait()
class AsyncSwallows(Async):
    async def __supervise__(self, failure):
        self.port.send("in the hook")
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                pass
port, receiver = Channel.open()
def spawn(cls, where):
    owner = where.spawn("owner", cls, port)
    owner.begin.call_one().get()
    assert receiver.recv().get() == "in the hook"
    return owner
"""
STUCK_KINDS = pytest.mark.parametrize("cls", ["Owner", "Async", "AsyncWaits", "AsyncSwallows"])


@STUCK_KINDS
@pytest.mark.parametrize("where", ["this_proc()", "this_host().spawn_procs()"])
def test_exit_while_supervise_does_not_return(cls, where):
    run(STUCK + f"spawn({cls}, {where})").assert_clean()


@STUCK_KINDS
@pytest.mark.parametrize("where", ["this_proc()", "this_host().spawn_procs()"])
def test_stop_while_supervise_does_not_return(cls, where):
    done = run(
        STUCK
        + f"""
configure(stop_grace_period="50ms")
owner = spawn({cls}, {where})
waiting = owner.value.call_one()
if {cls == "AsyncWaits" or cls == "AsyncSwallows"}:
    assert waiting.get() == 1
owner.stop("enough").get()
say("stopped")
if {cls == "Owner" or cls == "Async"}:
    assert "stopped: enough" in str(waiting.exception()), waiting.exception()
"""
    )
    prefix = "" if where == "this_proc()" else "[0] "
    busy = {"Owner": "__supervise__", "Async": "__supervise__", "AsyncSwallows": "a task"}.get(cls)
    line = f"{prefix}monarch: stop.timeout: <root>.<__main__.{cls} owner> is still in {busy} after its time to stop was over\n"
    done.assert_clean(0, line if busy else "")
    assert done.out == "stopped\n"


@pytest.mark.parametrize("cls", ["Owner", "Async"])
def test_stop_ends_an_owner_stuck_in_supervise(cls):
    done = run(
        STUCK
        + f"""
configure(stop_grace_period="50ms", process_exit_timeout="100ms")
procs = this_host().spawn_procs()
owner = spawn({cls}, procs)
procs.stop().get()
say("stopped")
"""
    )
    assert (done.code, done.out, done.left) == (0, "stopped\n", [])
    assert (
        done.err == f"[0] monarch: stop.timeout: <root>.<__main__.{cls} owner> is still in __supervise__ after its time to stop was over\n"
    )


# ---- __cleanup__


class Messy(Actor):
    """Does not return from its clean-up before a message permits it."""

    def __init__(self, port: Port[Any]) -> None:
        self.port = port

    @endpoint
    def ready(self) -> None:
        pass

    def __cleanup__(self, exc: Exception | None) -> None:
        mine, gate = Channel.open()
        self.port.send(mine)
        gate.recv().get()
        self.port.send("returned after all")


class AsyncMessy(Actor):
    """Blocks its loop, so that it cannot be cancelled."""

    __init__ = Messy.__init__  # type: ignore[assignment]

    @endpoint
    async def ready(self) -> None:
        pass

    async def __cleanup__(self, exc: Exception | None) -> None:
        asyncio._set_running_loop(None)
        Messy.__cleanup__(self, exc)  # type: ignore[arg-type]


class Stubborn(AsyncMessy):
    """Ignores its cancellation."""

    async def __cleanup__(self, exc: Exception | None) -> None:
        mine, gate = Channel.open()
        self.port.send(mine)  # type: ignore[attr-defined]
        while True:
            try:
                await gate.recv()
                break
            except asyncio.CancelledError:
                continue
        self.port.send("returned after all")  # type: ignore[attr-defined]


@pytest.mark.parametrize("cls", [Messy, AsyncMessy, Stubborn])
@pytest.mark.parametrize("where", ["proc", "client"])
def test_cleanup_that_does_not_return(procs, faults, cls, where):
    port, receiver = Channel.open()
    with this_host().spawn_procs(bootstrap=_hurry) as own, PATIENT:
        messy = (own if where == "proc" else this_proc()).spawn("messy", cls, port)
        messy.ready.call_one().get()
        with pytest.raises(
            SupervisionError, match=r"messy\.stop\(\) failed, The actor .* messy> and all its descendants have failed: "
        ) as caught:
            messy.stop().get()
        assert caught.value.failure.reason.detail == "TimeoutError: __cleanup__ took longer than 0.05 s"
        failure = faults.get()
        assert (failure.name, failure.reason) == ("messy", caught.value.failure.reason)
        # The clean-up continues without harm.
        receiver.recv().get().send("now")
        assert receiver.recv().get() == "returned after all"


def _hurry() -> None:
    from monarch.config import configure

    configure(cleanup_timeout="50ms")


# Even on a slow machine, the drain is over before its time.
PATIENT = configured(cleanup_timeout="50ms", stop_grace_period="20s", stop_actor_timeout="25s")


HANGS = """
from monarch.config import configure
import asyncio
configure(cleanup_timeout="100ms", exit_grace="20s")
class Sync(Actor):
    @endpoint
    def ready(self):
        pass
    def __cleanup__(self, exc):
        threading.Event().wait()
class Spins(Sync):
    def __cleanup__(self, exc):
        while True:
            pass
class Async(Actor):
    @endpoint
    async def ready(self):
        pass
    async def __cleanup__(self, exc):
        await asyncio.Event().wait()
class AsyncBlocks(Async):
    async def __cleanup__(self, exc):
        threading.Event().wait()
class Tidy(Actor):
    @endpoint
    def ready(self):
        pass
    def __cleanup__(self, exc):
        say("tidy")
"""


@pytest.mark.parametrize("cls", ["Sync", "Spins", "Async", "AsyncBlocks"])
@pytest.mark.parametrize("where", ["this_proc()", "this_host().spawn_procs()"])
def test_exit_while_cleanup_does_not_return(cls, where):
    done = run(
        HANGS
        + f"""
where = {where}
where.spawn("messy", {cls}).ready.call_one().get()
where.spawn("tidy", Tidy).ready.call_one().get()
"""
    )
    # No other owner exists: the program prints the failure and exits with 1. Other actors are cleaned up.
    assert (done.code, done.left) == (1, []), done
    text = r"Unhandled monarch error .*\nThe actor <root>\.<__main__\.\w+ messy> and all its descendants have failed: "
    assert re.match(text + r"TimeoutError: __cleanup__ took longer than 0\.1 s \(pid", done.err), done.err
    assert done.err.count("Unhandled monarch error") == 1 and done.out.endswith("tidy\n")


def test_cleanup_runs_if_the_endpoint_ever_returns(procs, capfd):
    port, receiver = Channel.open()

    class Late(Actor):
        @endpoint
        def wait(self) -> None:
            mine, gate = Channel.open()
            port.send(mine)
            gate.recv().get()
            port.send("endpoint returned")

        def __cleanup__(self, exc: Exception | None) -> None:
            port.send(("cleaned up", exc))

    late = this_proc().spawn("late", Late)
    with configured(stop_grace_period="50ms"):
        late.wait.broadcast()
        gate = receiver.recv().get()
        late.stop().get()
    display = "<root>.<test_bad_hooks.test_cleanup_runs_if_the_endpoint_ever_returns.Late late>"
    assert capfd.readouterr().err == f"monarch: stop.timeout: {display} is still in wait after its time to stop was over\n"
    gate.send("now")
    assert [receiver.recv().get() for _ in range(2)] == ["endpoint returned", ("cleaned up", None)]
