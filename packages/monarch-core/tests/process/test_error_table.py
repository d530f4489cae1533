"""The outcome of an error in a handler, case by case, and the texts that report it."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import threading
from typing import Any

import pytest

from monarch.actor import (
    Actor,
    ActorError,
    ActorMesh,
    Channel,
    MeshFailure,
    Port,
    SpawnError,
    SupervisionError,
    context,
    current_rank,
    endpoint,
    get_or_spawn_controller,
    send,
    this_host,
    this_proc,
)

pytestmark = pytest.mark.usefixtures("fresh")


@pytest.fixture(scope="module")
def procs(faults):
    mesh = this_host().spawn_procs(per_host={"gpus": 2})
    yield mesh
    mesh.stop().get()


class Unloadable:
    def __reduce__(self) -> Any:
        return _refuse, ()


def _refuse() -> Any:
    raise LookupError("cannot be loaded here")


class OddError(Exception):
    """Does not survive pickling."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__(f"odd {a} {b}")


def act(self: Any, what: str) -> Any:
    """The common body of both kinds of actors."""
    if what == "value":
        return "alive"
    if what == "error":
        raise ValueError("plain")
    if what == "chained":
        try:
            raise KeyError("first")
        except KeyError as e:
            raise ValueError("second") from e
    if what == "odd":
        raise OddError(1, 2)
    if what == "lines":
        raise ValueError("one\ntwo")
    if what == "empty":
        raise ValueError
    if what == "stop":
        raise StopIteration("iteration")
    if what == "exit":
        raise SystemExit(3)
    if what == "interrupt":
        raise KeyboardInterrupt
    if what == "generator":
        raise GeneratorExit
    if what == "base":
        raise BaseException("base")
    if what == "cancelled":
        raise asyncio.CancelledError("not by us")
    if what == "unpicklable":
        return threading.Lock()
    if what == "abort":
        context().actor_instance.abort("had enough")
        return "last words"
    if what == "kill":
        context().actor_instance.kill()
        raise ValueError("last error")
    if what == "os_exit":
        os._exit(7)
    if what == "os_exit_0":
        os._exit(0)
    if what == "sigkill":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "talk":
        print("the last thing it said", flush=True)
        os._exit(9)
    raise AssertionError(what)


class Sync(Actor):
    def __init__(self, first: str = "value") -> None:
        act(self, first)

    @endpoint
    def do(self, what: Any) -> Any:
        return act(self, what)

    @endpoint(explicit_response_port=True)
    def through(self, port: Port[Any], what: Any) -> None:
        port.send(act(self, what))

    @endpoint
    def do_all(self, what: dict[int, str]) -> Any:
        return act(self, what.get(current_rank().rank, "value"))


class Async(Actor):
    def __init__(self, first: str = "value") -> None:
        act(self, first)

    @endpoint
    async def do(self, what: Any) -> Any:
        await asyncio.sleep(0)
        return act(self, what)

    @endpoint(explicit_response_port=True)
    async def through(self, port: Port[Any], what: Any) -> None:
        await asyncio.sleep(0)
        port.send(act(self, what))

    @endpoint
    async def do_all(self, what: dict[int, str]) -> Any:
        return act(self, what.get(current_rank().rank, "value"))


BOTH = pytest.mark.parametrize("cls", [Sync, Async])
TOLD = ["call", "call_one", "choose", "stream"]


@pytest.fixture
def one(procs, cls):
    return procs.slice(gpus=0).spawn("error", cls)


def result_of(handle: ActorMesh, adverb: str, *args: Any) -> Any:
    answer = getattr(handle.do, adverb)(*args)
    return next(answer).get() if adverb == "stream" else answer.get()


def untold(handle: Any, way: str, what: Any) -> None:
    if way == "broadcast":
        handle.do.broadcast(what)
    elif way == "send":
        send(handle.do, (what,), {})
    else:
        handle.through.broadcast(what)


# ---- rows of the table


@BOTH
@pytest.mark.parametrize("adverb", TOLD)
@pytest.mark.parametrize(
    ("what", "kind", "text"),
    [
        ("error", ValueError, "ValueError: plain"),
        ("chained", ValueError, "ValueError: second"),
        ("odd", Exception, "OddError: odd 1 2"),
        ("empty", ValueError, "ValueError"),
        ("unpicklable", TypeError, "lock"),
    ],
)
def test_exception_reaches_the_caller_and_the_actor_lives(one, adverb, what, kind, text):
    with pytest.raises(ActorError, match=text) as caught:
        result_of(one, adverb, what)
    assert type(caught.value.exception) is kind
    assert one.do.call_one("value").get() == "alive"


@BOTH
def test_actor_reports_and_survives_undecodable_arguments(one):
    for adverb in TOLD:
        with pytest.raises(ActorError, match="LookupError: cannot be loaded here"):
            result_of(one, adverb, Unloadable())
    with pytest.raises(ActorError, match="LookupError: cannot be loaded here"):
        one.through.call_one(Unloadable()).get()
    assert one.do.call_one("value").get() == "alive"


def test_stop_iteration_of_a_sync_endpoint(procs):
    handle = procs.slice(gpus=0).spawn("error", Sync)
    with pytest.raises(ActorError) as caught:
        handle.do.call_one("stop").get()
    assert isinstance(caught.value.exception, StopIteration)
    assert handle.do.call_one("value").get() == "alive"


@BOTH
@pytest.mark.parametrize("way", ["broadcast", "send", "port"])
@pytest.mark.parametrize(("what", "text"), [("error", "ValueError: plain"), (Unloadable(), "LookupError: cannot be loaded here")])
def test_unreported_exception_ends_the_actor(one, faults, way, what, text):
    queued = [one.do.call_one("value") for _ in range(2)]
    untold(one, way, what)
    failure = faults.get()
    assert isinstance(failure, MeshFailure) and failure.crashed_ranks == [0] and failure.mesh_name == one._name.get()
    assert text in str(failure) and failure.reason.kind == "raised" and failure.reason.detail == text
    assert [f.get() for f in queued] == ["alive", "alive"]
    with pytest.raises(SupervisionError, match=text):
        one.do.call_one("value").get()


@BOTH
def test_exception_of_an_explicit_port_endpoint_is_fatal(one, faults):
    with pytest.raises(SupervisionError, match="ValueError: plain"):
        one.through.call_one("error").get()
    assert "ValueError: plain" in str(faults.get())


@BOTH
@pytest.mark.parametrize("adverb", TOLD)
@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("exit", "SystemExit: 3"),
        ("interrupt", "KeyboardInterrupt"),
        ("generator", "GeneratorExit"),
        ("base", "BaseException: base"),
        ("cancelled", "CancelledError: not by us"),
    ],
)
def test_base_exception_is_the_end(one, faults, adverb, what, text):
    with pytest.raises(SupervisionError, match=text) as caught:
        result_of(one, adverb, what)
    assert not isinstance(caught.value, ActorError) and isinstance(caught.value, RuntimeError)
    assert text in str(faults.get())
    with pytest.raises(SupervisionError, match=text):
        one.do.call_one("value").get()


@BOTH
@pytest.mark.parametrize("way", ["broadcast", "send", "port"])
def test_unreported_base_exception_ends_the_actor(one, faults, way):
    untold(one, way, "exit")
    assert "SystemExit: 3" in str(faults.get())


@BOTH
def test_messages_behind_a_failure_fail(procs, cls, faults):
    handle = procs.slice(gpus=0).spawn("error", cls)
    first = handle.do.call_one("value")
    bad = handle.do.call_one("exit")
    behind = [handle.do.call_one("value") for _ in range(5)]
    assert first.get() == "alive"
    for future in (bad, *behind):
        with pytest.raises(SupervisionError, match="SystemExit: 3"):
            future.get()
    faults.get()
    assert faults.empty()


@BOTH
def test_abort_delivers_the_value_first(one, faults):
    assert one.do.call_one("abort").get() == "last words"
    failure = faults.get()
    assert failure.reason.detail == "actor explicitly aborted due to: had enough"
    with pytest.raises(SupervisionError, match="failed: actor explicitly aborted due to: had enough"):
        one.do.call_one("value").get()


@BOTH
def test_kill_delivers_the_error_first(one, faults):
    with pytest.raises(ActorError, match="last error"):
        one.do.call_one("kill").get()
    assert "actor explicitly aborted due to: (no reason provided)" in str(faults.get())


@BOTH
@pytest.mark.parametrize("way", ["broadcast", "send", "port"])
def test_abort_without_a_caller(one, faults, way):
    untold(one, way, "abort")
    assert "actor explicitly aborted due to: had enough" in str(faults.get())


@BOTH
@pytest.mark.parametrize(
    ("what", "kind", "text"),
    [
        ("os_exit", "exit_code", "the process this actor was running on exited with non-zero code 7"),
        ("os_exit_0", "returned", "the process this actor was running on exited with code 0 while actors were running"),
        ("sigkill", "signal", r"the process this actor was running on failed: Killed\(sig=9\) \(pid \d+ on \S+\) SIGKILL"),
    ],
)
def test_end_of_a_process_fails_its_pending_calls(cls, faults, what, kind, text):
    mesh = this_host().spawn_procs(per_host={"gpus": 2})
    one, other = mesh.spawn("error", cls), mesh.spawn("other", cls)
    idle = other.through.call("value")
    assert idle.get().values() == ["alive"] * 2
    pid = mesh.slice(gpus=1)
    calls = [one.slice(gpus=1).do.call_one(what)] + [one.slice(gpus=1).do.call_one("value") for _ in range(3)]
    for future in calls:
        with pytest.raises(SupervisionError, match=text) as caught:
            future.get()
        assert caught.value.failure.reason.kind == kind and caught.value.code == kind
    reported = [faults.get(), faults.get()]
    assert {f.name for f in reported} == {"error", "other"}
    assert all(f.crashed_ranks == [1] and f.reason.kind == kind for f in reported)
    with pytest.raises(SupervisionError, match=text):
        other.do.call("value").get()
    assert other.slice(gpus=0).do.call_one("value").get() == "alive"
    # No actor can be spawned there any more.
    late = pid.spawn("late", cls)
    with pytest.raises(SpawnError, match="error spawning actor mesh late: the process this actor was running on"):
        late.initialized.get()
    with pytest.raises(SupervisionError, match=text):
        late.do.call_one("value").get()
    mesh.stop().get()
    assert faults.empty()


@BOTH
def test_failed_init_is_one_failure_per_rank(procs, cls, faults):
    handle = procs.spawn("error", cls, "error")
    with pytest.raises(SupervisionError, match="ValueError: plain"):
        handle.do.call("value").get()
    found = [faults.get(), faults.get()]
    assert sorted(f.crashed_ranks[0] for f in found) == [0, 1]
    for rank in (0, 1):
        with pytest.raises(SupervisionError, match=rf"gpus': {rank}/2.*ValueError: plain"):
            handle.slice(gpus=rank).do.call_one("value").get()
    assert faults.empty()


@BOTH
def test_base_exception_in_init(procs, cls, faults):
    handle = procs.slice(gpus=0).spawn("error", cls, "exit")
    assert "SystemExit: 3" in str(faults.get())
    with pytest.raises(SupervisionError, match="SystemExit: 3"):
        handle.do.call_one("value").get()


@BOTH
def test_abort_in_init(procs, cls, faults):
    handle = procs.slice(gpus=0).spawn("error", cls, "abort")
    assert "had enough" in str(faults.get())
    with pytest.raises(SupervisionError, match="had enough"):
        handle.do.call_one("value").get()


# ---- texts


@BOTH
def test_text_of_an_actor_error(procs, cls):
    handle = procs.spawn("error", cls)
    with pytest.raises(ActorError) as caught:
        handle.do_all.call({1: "chained"}).get()
    error = caught.value
    assert error.message == "Actor call error.do_all failed."
    head, rest = str(error).split("\n", 1)
    display = f"<root>.<test_error_table.{cls.__name__} error{{'gpus': 1/2}}>"
    assert re.fullmatch(re.escape(f"Actor call error.do_all failed. ValueError: second at {display} ") + r"\(pid \d+ on \S+\)", head)
    assert rest == " " + error.exception_formatted
    formatted = error.exception_formatted
    assert formatted.startswith("Traceback of where the remote call failed (most recent call last):\n")
    assert "KeyError: 'first'" in formatted and "ValueError: second" in formatted
    assert "The above exception was the direct cause of the following exception:" in formatted
    assert "_core" not in formatted and "in act" in formatted
    assert error.exception_type == "ValueError" and error.code == "actor_error"


@BOTH
def test_exception_type_is_always_known(one):
    with pytest.raises(ActorError) as caught:
        one.do.call_one("odd").get()
    assert caught.value.exception_type == "test_error_table.OddError"
    assert str(caught.value.exception) == "odd 1 2"


class Relay(Actor):
    def __init__(self, other: Any) -> None:
        self.other = other

    @endpoint
    def do(self, what: str) -> Any:
        return self.other.do.call_one(what).get()


@BOTH
def test_error_that_crossed_several_actors_nests(procs, one, cls):
    relay = procs.slice(gpus=1).spawn("relay", Relay, one)
    with pytest.raises(ActorError) as caught:
        relay.do.call_one("error").get()
    inner = caught.value.exception
    assert isinstance(inner, ActorError) and isinstance(inner.exception, ValueError)
    text = str(caught.value)
    assert "Actor call relay.do failed." in text and "Actor call error.do failed." in text
    assert text.count("Traceback of where the remote call failed (most recent call last):") >= 2


@BOTH
def test_text_of_a_failed_call(one, cls):
    with pytest.raises(SupervisionError) as caught:
        one.do.call_one("exit").get()
    head, *rest = str(caught.value).split("\n")
    display = f"<root>.<test_error_table.{cls.__name__} error>"
    begin = f"Endpoint call error.do() failed, The actor {display} and all its descendants have failed: SystemExit: 3 "
    assert re.fullmatch(re.escape(begin) + r"\(pid \d+ on \S+\)", head)
    assert re.search(r"Endpoint call error.do\(\) failed, The actor .*error.* and all its descendants have failed", str(caught.value))
    assert all(line.startswith("  ") for line in rest)
    assert rest[0] == "  Traceback of where the remote call failed (most recent call last):" and rest[-1].startswith("  hint: ")
    failure = caught.value.failure
    assert caught.value.endpoint == "error.do()" and failure.name == "error" and failure.actor == display
    assert failure.pid and failure.host and failure.cause is None and failure.mesh is None
    caught.value.endpoint = "work.step()"
    assert str(caught.value).startswith("Endpoint call work.step() failed, The actor")
    caught.value.endpoint = None
    assert str(caught.value).startswith("The actor") and str(caught.value) == failure.report()


@BOTH
def test_text_of_a_mesh_failure(procs, cls, faults):
    handle = procs.spawn("error", cls)
    handle.slice(gpus=1).do.broadcast("error")
    failure = faults.get()
    name = handle._name.get()
    display = f"<root>.<test_error_table.{cls.__name__} error{{'gpus': 1/2}}>"
    begin = f"MeshFailure(mesh_name={name}, crashed_ranks=[1], event=Supervision event: actor {display} failed: ValueError: plain "
    for text in (str(failure), repr(failure)):
        assert re.fullmatch(re.escape(begin) + r"\(pid \d+ on \S+\)\)", text)


@BOTH
def test_error_of_a_dead_process_has_its_output(cls, faults):
    mesh = this_host().spawn_procs()
    handle = mesh.spawn("error", cls)
    with pytest.raises(SupervisionError) as caught:
        handle.do.call_one("talk").get()
    lines = str(caught.value).split("\n")
    assert "exited with non-zero code 9" in lines[0]
    at = lines.index("  last output:")
    assert any("the last thing it said" in line for line in lines[at + 1 :]) and lines[-1].startswith("  hint: ")
    faults.get()
    mesh.stop().get()


@BOTH
def test_text_of_stopped_meshes(cls):
    mesh = this_host().spawn_procs()
    one, two = mesh.spawn("one", cls), mesh.spawn("two", cls)
    assert two.do.call_one("value").get() == "alive"
    one.stop("no more").get()
    pattern = r"Endpoint call one.do\(\) failed, Supervision event: actor \S+ one> has status: stopped: no more \(pid \d+ on \S+\)"
    with pytest.raises(SupervisionError, match=pattern.replace(r"\S+ one", r"<root>\.<\S+ one")) as caught:
        one.do.call_one("value").get()
    mesh.stop("all of it").get()
    with pytest.raises(SupervisionError, match="has status: stopped: all of it") as other:
        two.do.call_one("value").get()
    for error in (caught.value, other.value):
        assert re.search(
            r"(?s)(The actor|Supervision event: actor) .* (and all its descendants have failed|has status:).*stopped", str(error)
        )
        assert error.failure.reason.kind == "stopped"
    with pytest.raises(RuntimeError, match="`ProcMesh` has already been stopped"):
        mesh.spawn("late", cls)


class Nester(Actor):
    """Owns one actor, and fails with it."""

    def __init__(self, cls: type[Any]) -> None:
        self.nested = context().actor_instance.proc_mesh.rename(gpus="a_dim").spawn("nested", cls)

    @endpoint
    def run(self, what: str) -> Any:
        self.nested.do.call(what).get()

    @endpoint
    def handle(self) -> Any:
        return self.nested


@BOTH
def test_text_of_a_chain_and_of_nested_meshes(cls, faults):
    mesh = this_host().spawn_procs(per_host={"gpus": 1})
    outer = mesh.spawn("intermediate", Nester, cls)
    with pytest.raises(SupervisionError) as caught:
        outer.run.call("exit").get()
    lines = str(caught.value).split("\n")
    owner = "<root>.<test_error_table.Nester intermediate{'gpus': 0/1}>"
    nested = f"{owner}.<test_error_table.{cls.__name__} nested{{'a_dim': 0/1}}>"
    assert lines[0].startswith(
        f"Endpoint call intermediate.run() failed, The actor {nested} and all its descendants have failed: SystemExit: 3 (pid "
    )
    assert lines[1] == f"  {owner} failed because it did not handle a supervision event from its child"
    failure = faults.get()
    assert failure.name == "intermediate" and failure.cause.name == "nested" and failure.crashed_ranks == [0]
    mesh.stop().get()


def test_text_of_a_killed_nested_process(faults):
    mesh = this_host().spawn_procs(per_host={"gpus": 1})

    class Spawner(Actor):
        def __init__(self) -> None:
            self.nested = this_host().spawn_procs(per_host={"a_dim": 1}).spawn("nested", Sync)

        @endpoint
        def run(self) -> Any:
            self.nested.do.call("sigkill").get()

    outer = mesh.spawn("outer", Spawner)
    with pytest.raises(SupervisionError) as caught:
        outer.run.call().get()
    text = str(caught.value)
    assert re.search(r"The actor.*\.Sync nested\{'a_dim': 0/1\}.*and all its descendants have failed", text)
    assert re.search(r"the process this actor was running on failed: Killed\(sig=9\)", text)
    assert faults.get().name == "outer"
    mesh.stop().get()


@BOTH
def test_text_of_a_failed_controller(cls):
    controller = get_or_spawn_controller(f"actor_{cls.__name__}", cls).get()
    assert get_or_spawn_controller(f"actor_{cls.__name__}", cls).get().do.call_one("value").get() == "alive"
    with pytest.raises(SupervisionError, match="SystemExit: 3"):
        controller.do.call_one("exit").get()
    with pytest.raises(ActorError, match=f"Failure on actor_{cls.__name__}: .*SystemExit: 3"):
        get_or_spawn_controller(f"actor_{cls.__name__}", cls).get()


@BOTH
def test_every_row_holds_in_the_client_process(cls, faults):
    def spawn() -> Any:
        return this_proc().spawn("error", cls)

    with pytest.raises(ActorError, match="plain"):
        spawn().do.call_one("error").get()
    for what, text in [("exit", "SystemExit: 3"), ("interrupt", "KeyboardInterrupt"), ("cancelled", "CancelledError")]:
        with pytest.raises(SupervisionError, match=text):
            spawn().do.call_one(what).get()
        assert text in str(faults.get())
    handle = spawn()
    handle.do.broadcast("error")
    assert "ValueError: plain" in str(faults.get())
    with pytest.raises(ActorError, match="cannot be loaded"):
        spawn().do.call_one(Unloadable()).get()
    with pytest.raises(ActorError, match="lock"):
        spawn().do.call_one("unpicklable").get()


def test_closed_mailbox_fails_the_pending_receive():
    port, receiver = Channel.open()
    pending = receiver.recv()
    receiver._inbox.mailbox.close()
    with pytest.raises(EOFError, match="Port closed: "):
        pending.get()
    del port
