"""The extension interface: promises, membership, requests between processes, by its public names."""

from __future__ import annotations

import asyncio
import copy
import gc
import os
import pickle
import signal
import threading
from typing import Any

import pytest
from fresh import run

from monarch import extension
from monarch.actor import Actor, ActorError, MonarchError, ProcMesh, endpoint, this_host
from monarch.extension.mesh import mesh_view


class Peer(Actor):
    """Another process, with handlers of requests."""

    def __init__(self) -> None:
        self.kept: list[extension.Request] = []
        extension.serve("test.echo", lambda request: bytes(reversed(request.body)))
        extension.serve("test.sender", lambda request: str(request.proc).encode())
        extension.serve("test.raises", self._raises)
        extension.serve("test.leaves", self._leaves)
        extension.serve("test.talks", self._talks)
        extension.serve("test.returns", lambda request: 7)  # pyright: ignore
        extension.serve("test.refuses", lambda request: request.fail(b"\x00\x01") or request.defer())
        extension.serve("test.later", self._later)
        extension.serve("test.mute", self._mute)
        extension.serve("test.surrogate", self._surrogate)
        extension.serve("test.fails_with_text", lambda request: request.fail("text"))
        extension.serve("test.both", lambda request: request.defer() or b"and an answer")
        extension.serve("test.drops", lambda request: request.defer())
        extension.serve("test.never", lambda request: request.defer() or self.kept.append(request))

    def _raises(self, request: extension.Request) -> bytes:
        raise ValueError(f"{len(request.body)} is too many")

    def _talks(self, request: extension.Request) -> bytes:
        raise ValueError("a" * (25 << 20) + "b" * (25 << 20))

    def _mute(self, request: extension.Request) -> bytes:
        class Mute(Exception):
            def __str__(self) -> str:
                raise RuntimeError

        raise Mute

    def _surrogate(self, request: extension.Request) -> bytes:
        raise ValueError("\ud800")

    def _leaves(self, request: extension.Request) -> bytes:
        raise SystemExit(3)

    def _later(self, request: extension.Request) -> None:
        request.defer()

        def answer() -> None:
            request.answer(b"late")
            request.answer(b"again")

        threading.Thread(target=answer).start()

    @endpoint
    def member(self) -> tuple[int, int, int, str, str, int, int, bool]:
        m = extension.member()
        return m.proc, m.job, m.host, m.name, m.hostname, m.pid, m.rank, m.is_client

    @endpoint
    def ask(self, proc: int, name: str, body: bytes) -> bytes:
        return extension.ask(proc, name, body).get()

    @endpoint
    def end_of(self, proc: int, host: int = 0) -> str:
        try:
            return extension.watch(proc, host).get().describe()
        except MonarchError as e:
            return f"{e.code}: {e}"

    @endpoint
    def handlers(self) -> None:
        """Returns when the handlers are there."""


@pytest.fixture(scope="module")
def procs() -> Any:
    mesh = this_host().spawn_procs({"procs": 2}, name="peers")
    yield mesh
    mesh.stop().get()


@pytest.fixture
def peers(procs: ProcMesh) -> Any:
    mesh = procs.spawn("peer", Peer)
    mesh.handlers.call().get()
    yield mesh
    mesh.stop().get()


def proc_of(peers: Any, rank: int) -> int:
    return peers.slice(procs=rank).member.call_one().get()[0]


# ---- promises


def test_promise_gives_what_it_was_set_to() -> None:
    promise = extension.promise("an answer")
    assert not promise.is_set() and "not set" in repr(promise)
    threading.Timer(0.0, promise.set_result, [[1, 2]]).start()
    value = promise.future.get()
    assert value == [1, 2] and promise.future.get() is value and promise.is_set()


def test_promise_raises_what_it_was_set_to() -> None:
    promise = extension.promise("an answer")
    error = KeyError("nothing of that name")
    promise.set_exception(error)
    with pytest.raises(KeyError) as caught:
        promise.future.get()
    assert caught.value is error


def test_promise_can_be_awaited_on_any_loop() -> None:
    async def main() -> int:
        promise = extension.promise("an answer")
        asyncio.get_running_loop().call_soon(promise.set_result, 5)
        return await promise.future

    assert asyncio.run(main()) == 5


def test_dropped_promise_fails_its_future() -> None:
    promise = extension.promise("the rows of host 3")
    future = promise.future
    del promise
    gc.collect()
    with pytest.raises(extension.PromiseDropped, match="the promise the rows of host 3 was dropped") as caught:
        future.get()
    assert caught.value.code == "promise_dropped" and isinstance(caught.value, MonarchError)


def test_promise_is_set_once_only() -> None:
    promise = extension.promise("an answer")
    promise.set_result(1)
    for again in (lambda: promise.set_result(1), lambda: promise.set_exception(ValueError())):
        with pytest.raises(RuntimeError, match="promise an answer is set already"):
            again()
    assert promise.future.get() == 1


def test_one_of_many_threads_sets_a_promise() -> None:
    for _ in range(50):
        promise = extension.promise("a race")
        barrier = threading.Barrier(4)
        won: list[int] = []

        def compete(number: int, promise: Any = promise, barrier: Any = barrier, won: Any = won) -> None:
            barrier.wait()
            try:
                promise.set_result(number)
            except RuntimeError:
                return
            won.append(number)

        threads = [threading.Thread(target=compete, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert won == [promise.future.get()]


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_promise_cannot_be_copied(copied: Any) -> None:
    promise = extension.promise("an answer")
    with pytest.raises(TypeError, match="promise an answer cannot be copied or pickled"):
        copied(promise)
    promise.set_result(1)
    assert promise.future.get() == 1


def test_function_of_a_promise_runs_when_read() -> None:
    read: list[int] = []

    def value() -> int:
        read.append(1)
        return 7

    promise = extension.promise("seven")
    promise.set_from(value)
    assert promise.is_set() and not read
    assert promise.future.get() == promise.future.get() == 7 and read == [1]
    with pytest.raises(RuntimeError, match="seven is set already"):
        promise.set_from(value)

    def fails() -> int:
        raise ValueError("not today")

    failing = extension.promise("an error")
    failing.set_from(fails)
    for _ in range(2):
        with pytest.raises(ValueError, match="not today"):
            failing.future.get()
    with pytest.raises(TypeError, match=r"set_from\(7\): expected a function, not int"):
        extension.promise("no function").set_from(7)  # pyright: ignore[reportArgumentType]


def test_unset_promise_at_interpreter_exit_is_silent() -> None:
    # The finder of modules is gone before the module of the program is.
    source = """
    import sys
    from monarch.extension import promise
    class Keeper:
        def __init__(self):
            self.promise = promise("never set")
        def __del__(self):
            sys.meta_path = None
            sys.modules.pop("monarch._core.errors.table", None)
            del self.promise
    keeper = Keeper()
    """
    assert run(source).stderr == ""


def test_promise_takes_exceptions_only_as_errors() -> None:
    promise = extension.promise("an answer")
    with pytest.raises(TypeError, match="promise an answer: set_exception"):
        promise.set_exception("no exception")  # pyright: ignore
    promise.set_result(None)


def test_when_done_runs_for_promises_before_and_after() -> None:
    seen: list[object] = []
    both = threading.Semaphore(0)

    def note(future: Any) -> None:
        seen.append(future.get())
        both.release()

    early, late = extension.promise("early"), extension.promise("late")
    early.set_result("early")
    extension.when_done(early.future, note)
    assert both.acquire(timeout=30)
    extension.when_done(late.future, note)
    late.set_result("late")
    assert both.acquire(timeout=30)
    assert seen == ["early", "late"]


# ---- membership


def test_members_have_their_own_identity(peers: Any) -> None:
    me = extension.member()
    assert me.is_client and me.name == "client" and me.pid == os.getpid() and me.proc == me.job == me.host
    for rank in range(2):
        proc, job, host, name, hostname, pid, its_rank, is_client = peers.slice(procs=rank).member.call_one().get()
        assert (job, host, hostname, its_rank, is_client) == (me.job, me.host, me.hostname, rank, False)
        assert name == "peers" and pid not in (0, me.pid) and proc != me.proc
    with pytest.raises(AttributeError, match=r"Member\.pid cannot be set"):
        me.pid = 3


def test_identities_have_types_and_a_text() -> None:
    me = extension.member()
    assert type(me.proc) is extension.ProcId and type(me.job) is extension.JobId and type(me.host) is extension.HostId
    assert extension.ProcId.from_string(str(me.proc)) == me.proc and repr(me.proc) == f"ProcId('{me.proc}')"
    assert pickle.loads(pickle.dumps(me.proc)) == me.proc
    with pytest.raises(ValueError, match="'3' is not the identity of a process"):
        extension.ProcId.from_string("3")


def test_end_of_a_killed_process_is_watched() -> None:
    mesh = this_host().spawn_procs(name="mortal")
    peer = mesh.spawn("peer", Peer)
    proc, *_, pid, _, _ = peer.member.call_one().get()
    future = extension.watch(proc)
    assert extension.end_of(proc) is None
    os.kill(pid, signal.SIGKILL)
    end = future.get()
    assert end.proc == proc and end.pid == pid and end.reason.kind == "signal" and "Killed" in end.describe()
    again = extension.end_of(proc)
    assert again is not None and again.reason == end.reason
    # A later watch is done at once.
    assert extension.watch(proc).get().reason == end.reason
    with pytest.raises(MonarchError):
        peer.handlers.call_one().get()


# ---- requests


def test_request_is_answered_by_its_handler(peers: Any) -> None:
    proc = proc_of(peers, 0)
    assert extension.ask(proc, "test.echo", b"abc").get() == b"cba"
    assert extension.ask(proc, "test.echo").get() == b""
    large = os.urandom(3 << 20)
    assert extension.ask(proc, "test.echo", large).get() == bytes(reversed(large))


def test_requests_go_between_procs_and_to_the_client(peers: Any) -> None:
    extension.serve("test.client", lambda request: b"from the client")
    me, first, second = extension.member().proc, proc_of(peers, 0), proc_of(peers, 1)
    asker = peers.slice(procs=0)
    assert asker.ask.call_one(second, "test.sender", b"").get().decode() == str(extension.ProcId(first))
    assert asker.ask.call_one(me, "test.client", b"").get() == b"from the client"
    assert extension.ask(me, "test.client").get() == b"from the client"


def test_deferred_request_is_answered_once(peers: Any) -> None:
    proc = proc_of(peers, 0)
    assert [extension.ask(proc, "test.later").get() for _ in range(5)] == [b"late"] * 5


@pytest.mark.parametrize(
    ("name", "text", "body"),
    [
        ("test.raises", r"request test\.raises to <\w+> failed: ValueError: 3 is too many", b"ValueError: 3 is too many"),
        ("test.leaves", r"failed: SystemExit: 3", b"SystemExit: 3"),
        ("test.returns", r"failed: TypeError: the handler returned int, not bytes", None),
        ("test.refuses", r"failed: 2 bytes", b"\x00\x01"),
        ("test.mute", r"failed: .*Mute", None),
        ("test.surrogate", r"failed: ValueError", None),
        ("test.fails_with_text", r"failed: TypeError: .*answered with str: expected bytes", None),
        ("test.both", r"failed: TypeError: the handler deferred the answer, and returned bytes", None),
        ("test.drops", r"failed: its handler has dropped it without an answer", None),
    ],
)
def test_failed_request_states_its_reason(peers: Any, name: str, text: str, body: bytes | None) -> None:
    with pytest.raises(extension.RequestError, match=text) as caught:
        extension.ask(proc_of(peers, 0), name, b"abc").get()
    assert caught.value.code == "request_failed" and (body is None or caught.value.body == body)
    assert pickle.loads(pickle.dumps(caught.value)).body == caught.value.body
    # The handlers continue.
    assert extension.ask(proc_of(peers, 0), "test.echo", b"ab").get() == b"ba"


def test_failed_request_may_stay_unread() -> None:
    """The bytes of its failure are no exception of an endpoint: nothing is written, and the client's threads go on."""
    source = """
    import gc
    from monarch.actor import Actor, endpoint, this_host
    from monarch.extension import ask, member, serve

    class Peer(Actor):
        @endpoint
        def serve(self):
            serve("refuses", lambda request: request.fail(b"\\x00\\x01") or request.defer())
            return member().proc

    peer = this_host().spawn_procs().spawn("peer", Peer)
    proc = peer.serve.call_one().get()
    unread = [ask(proc, "refuses") for _ in range(3)]
    try:
        ask(proc, "refuses").get()
    except Exception:
        pass
    unread.clear()
    gc.collect()
    assert peer.serve.call_one().get() == proc
    """
    assert run(source).stderr == ""


def test_request_without_a_handler_names_the_cause(peers: Any) -> None:
    with pytest.raises(extension.RequestError, match=r"request test\.unknown to <\w+> has no handler: no wheel") as caught:
        extension.ask(proc_of(peers, 0), "test.unknown").get()
    assert caught.value.code == "request_unhandled" and "install the wheel" in str(caught.value.hint)


@pytest.mark.parametrize("name", ["", "x" * 256])
def test_bad_name_of_a_request_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="request name"):
        extension.ask(extension.member().proc, name)
    with pytest.raises(ValueError, match="request name"):
        extension.serve(name, lambda request: b"")


def test_request_to_a_process_that_ends_fails() -> None:
    mesh = this_host().spawn_procs(name="mortal")
    peer = mesh.spawn("peer", Peer)
    proc, *_, pid, _, _ = peer.member.call_one().get()
    waiting = extension.ask(proc, "test.never")
    os.kill(pid, signal.SIGKILL)
    for future in (waiting, extension.ask(proc, "test.echo")):
        with pytest.raises(extension.RequestError, match=r"was not answered: .*Killed\(sig=9\)") as caught:
            future.get()
        assert caught.value.code == "request_proc_ended" and caught.value.end is not None
    with pytest.raises(MonarchError):
        peer.handlers.call_one().get()


def test_text_of_a_handler_that_raises_is_bounded(peers: Any) -> None:
    with pytest.raises(extension.RequestError, match=r"failed: ValueError: aaa") as caught:
        extension.ask(proc_of(peers, 0), "test.talks").get()
    assert len(caught.value.body) < 20_000 and f"... {(50 << 20) - (16 << 10)} characters left out ..." in str(caught.value)


UNKNOWN = 0x1234567812345677


def test_request_to_an_identity_of_no_process_fails(peers: Any) -> None:
    text = rf"request test\.echo to {extension.ProcId(UNKNOWN)}: no process of this job that is known here has this identity"
    for _ in range(2):
        with pytest.raises(extension.RequestError, match=text) as caught:
            extension.ask(UNKNOWN, "test.echo").get()
        assert caught.value.code == "proc_unknown" and "reach(proc, host)" in str(caught.value.hint)
        with pytest.raises(ActorError, match=text):
            peers.slice(procs=0).ask.call_one(UNKNOWN, "test.echo", b"").get()


def test_watch_of_an_identity_of_no_process_fails(peers: Any) -> None:
    text = f"watch of {extension.ProcId(UNKNOWN)}: no process of this job that is known here has this identity"
    for _ in range(2):
        with pytest.raises(MonarchError, match=text) as caught:
            extension.watch(UNKNOWN).get()
        assert caught.value.code == "proc_unknown"
        assert text in peers.slice(procs=0).end_of.call_one(UNKNOWN).get()
        # An existing host, and one that does not exist.
        for host in (int(extension.member().host), UNKNOWN - 2):
            assert text in peers.slice(procs=1).end_of.call_one(UNKNOWN, host).get()


def test_proc_known_by_number_only_answers_requests(peers: Any) -> None:
    mesh = this_host().spawn_procs({"procs": 2}, name="strangers")
    first, second = (int(proc) for proc in mesh_view(mesh).procs)
    # The watch begins before the procs are ready, in a process without a handle of them.
    watched = extension.watch(first)
    mesh.initialized.get()
    other = peers.slice(procs=0)
    with pytest.raises(ActorError, match="has no handler"):
        other.ask.call_one(second, "test.unknown", b"").get()
    waiting = other.end_of.call_one(second)
    mesh.stop().get()
    assert watched.get().reason.kind == "stopped" and "stopped" in waiting.get()
    assert "stopped" in other.end_of.call_one(first).get()


@pytest.mark.parametrize(
    ("use", "error", "text"),
    [
        (lambda: extension.ask(None, "a"), TypeError, r"ask\(\.\.\., 'a'\): expected the identity of a process, a number, not None"),
        (lambda: extension.ask(-1, "a"), ValueError, r"ask\(\.\.\., 'a'\): -1 is not the identity of a process"),
        (lambda: extension.ask(1 << 64, "a"), ValueError, "is not the identity of a process"),
        (lambda: extension.ask(3, None), TypeError, "request name None: expected a str"),
        (lambda: extension.ask(3, "a", None), TypeError, r"ask\(.*'a'\): the body is bytes, not NoneType"),
        (lambda: extension.watch(None), TypeError, "watch: expected the identity of a process"),
        (lambda: extension.reach(3, None), TypeError, "reach: host: expected the identity of a process"),
        (lambda: extension.serve("a", None), TypeError, r"serve\('a'\): expected a function that takes a request, not None"),
        (lambda: extension.serve(None, lambda request: b""), TypeError, "request name None: expected a str"),
        (lambda: extension.promise(None), TypeError, r"promise\(None\): expected a str"),
        (lambda: extension.when_done(None, print), TypeError, r"when_done\(None\): expected a Future"),
        (lambda: extension.listen(None), TypeError, r"listen\(None\): expected a function"),
        (
            lambda: extension.error_text("request_failed", name="rows", proc="<4>"),
            KeyError,
            r"error_text\('request_failed'\): the template .* has the field 'why', which is not given",
        ),
    ],
)
def test_bad_argument_is_named(use: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        use()
