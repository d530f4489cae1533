"""Futures: observed any number of times, from threads and from event loops."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from eventually import SOURCE, eventually

from monarch._core.call.future import failed_future
from monarch.actor import (
    Actor,
    ActorError,
    Channel,
    Future,
    Port,
    endpoint,
    returns_future,
    this_host,
    this_proc,
)
from monarch.actor.testing import local_hosts


class Slow(Actor):
    def __init__(self) -> None:
        self.ports: list[Port[Any]] = []

    @endpoint
    def give(self, value: Any) -> Any:
        return value

    @endpoint
    def fail(self, text: str) -> None:
        raise ValueError(text)

    @endpoint(explicit_response_port=True)
    def later(self, port: Port[Any]) -> None:
        self.ports.append(port)

    @endpoint
    def open(self, value: Any) -> None:
        for port in self.ports:
            port.send(value)
        self.ports.clear()


class AsyncUser(Actor):
    def __init__(self, slow: Any) -> None:
        self.slow = slow

    @endpoint
    async def get_on_the_loop(self) -> list[str]:
        texts = []
        future = self.slow.later.call_one()

        def show(message: Any, *_: Any) -> None:
            texts.append(str(message))
            self.slow.open.broadcast(3)

        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = show
            assert future.get() == 3
            assert future.get() == 3
        return texts


@pytest.fixture(scope="module")
def slow(faults):
    mesh = this_host().spawn_procs(name="slow")
    yield mesh.spawn("slow", Slow)
    mesh.stop().get()


@pytest.fixture
def pending(slow):
    """A future and the function that gives it a value."""
    return slow.later.call_one(), lambda value: slow.open.call_one(value).get()


def test_future_has_no_public_constructor():
    text = "Future objects are returned by Monarch operations and cannot be constructed directly."
    with pytest.raises(TypeError) as caught:
        Future()
    assert str(caught.value) == text
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        Future(coro=None)


def test_observation_never_consumes(slow):
    future = slow.give.call_one([1])
    first = future.get()
    assert future.get() is first and future.result() is first and future.exception() is None

    async def main() -> None:
        assert await future is first
        assert await future is first
        assert await future.as_asyncio() is first

    asyncio.run(main())
    asyncio.run(main())
    with ThreadPoolExecutor(4) as pool:
        assert all(value is first for value in pool.map(lambda _: future.get(), range(20)))


def test_error_is_the_same_object_every_time(slow):
    future = slow.fail.call_one("boo")
    error = future.exception()
    assert isinstance(error, ActorError)

    async def main() -> None:
        for awaitable in (future, future.as_asyncio(), future):
            with pytest.raises(ActorError) as caught:
                await awaitable
            assert caught.value is error

    asyncio.run(main())
    for _ in range(3):
        with pytest.raises(ActorError) as caught:
            future.get()
        assert caught.value is error
    depth = 0
    frame = error.__traceback__
    while frame is not None:
        depth, frame = depth + 1, frame.tb_next
    assert depth < 10


def test_many_threads_observe_a_pending_one(pending):
    future, give = pending
    found: queue.Queue[Any] = queue.Queue()
    threads = [threading.Thread(target=lambda: found.put(future.get())) for _ in range(8)]
    for thread in threads:
        thread.start()
    give({"a": 1})
    values = [found.get() for _ in threads]
    assert values[0] == {"a": 1} and all(v is values[0] for v in values)
    for thread in threads:
        thread.join()


def test_threads_and_loops_observe_together(pending):
    future, give = pending
    found: queue.Queue[Any] = queue.Queue()
    started = threading.Barrier(5)

    def on_loop() -> None:
        async def main() -> None:
            both = future.as_asyncio()
            started.wait()
            found.put(await future)
            found.put(await both)

        asyncio.run(main())

    def blocking() -> None:
        started.wait()
        found.put(future.get())
        found.put(future.get())

    threads = [threading.Thread(target=body) for body in (on_loop, blocking, on_loop, blocking)]
    for thread in threads:
        thread.start()
    started.wait()
    give([7])
    values = [found.get() for _ in range(8)]
    assert all(v is values[0] for v in values)
    for thread in threads:
        thread.join()


def test_timeout_cancels_nothing(pending):
    future, give = pending
    for timeout in (0, 0.01):
        with pytest.raises(TimeoutError):
            future.get(timeout=timeout)
        with pytest.raises(TimeoutError):
            future.exception(timeout=timeout)
    give(5)
    assert future.get(timeout=10) == 5 and future.get(timeout=0) == 5


@pytest.mark.parametrize("timeout", [-1, -0.001, float("nan"), float("inf"), float("-inf")])
def test_invalid_timeouts_are_refused(slow, timeout):
    started = []

    @returns_future
    async def body() -> None:
        started.append(1)

    for future in (slow.give.call_one(1), body()):
        with pytest.raises(ValueError, match=f"invalid timeout {timeout}"):
            future.get(timeout=timeout)
        with pytest.raises(ValueError, match="invalid timeout"):
            future.exception(timeout=timeout)
    assert not started


def test_get_on_a_running_loop_warns_once(pending):
    future, give = pending

    async def main() -> None:
        warned, texts = threading.Event(), []
        giver = threading.Thread(target=lambda: warned.wait() and give(1))
        giver.start()
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = lambda message, kind, *_: (texts.append((kind, str(message))), warned.set())
            assert future.get() == 1
        giver.join()
        assert len(texts) == 1 and texts[0][0] is UserWarning and "active event loop" in texts[0][1] and "as_asyncio" in texts[0][1]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert future.get() == 1  # the result is there: no warning

    asyncio.run(main())


def test_own_code_that_waits_does_not_warn():
    """A `with` blocks, which its documentation states."""

    async def main() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with local_hosts(1) as hosts, hosts.spawn_procs() as procs:
                await procs.initialized

    asyncio.run(main())


def test_warning_names_the_line_of_the_caller(slow):
    port, receiver = Channel.open()

    async def main() -> list[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            future = slow.give.call_one(1)
            for wait in (lambda: future.exception(), lambda: receiver.recv().get(timeout=0)):
                with contextlib.suppress(TimeoutError):
                    wait()
        return [w.filename for w in caught]

    files = asyncio.run(main())
    assert files and set(files) == {__file__}
    del port


def test_get_in_an_async_actor_warns(slow):
    mesh = this_host().spawn_procs()
    texts = mesh.spawn("user", AsyncUser, slow).get_on_the_loop.call_one().get()
    assert len(texts) == 1 and "active event loop" in texts[0]
    mesh.stop().get()


def test_await_needs_a_loop(slow, pending):
    done = slow.give.call_one(1)
    done.get()
    for future in (pending[0], done, returns_future(_nothing)()):
        with pytest.raises(ValueError, match="no active event loop"):
            future.__await__().send(None)
        with pytest.raises(RuntimeError):
            future.as_asyncio()


async def _nothing() -> None: ...


def test_as_asyncio_futures_are_independent(pending):
    future, give = pending

    async def main() -> None:
        one, two = future.as_asyncio(), future.as_asyncio()
        assert isinstance(one, asyncio.Future) and one is not two
        one.cancel()
        await asyncio.to_thread(give, 4)
        assert await two == 4 and await future == 4
        with pytest.raises(asyncio.CancelledError):
            await one

    asyncio.run(main())


def test_stop_iteration_arrives_as_runtime_error():
    @returns_future
    async def body() -> Any:
        return 1

    async def main() -> None:
        future = failed_future(StopIteration("x"))
        with pytest.raises(RuntimeError):
            await future.as_asyncio()

    asyncio.run(main())
    assert body().get() == 1


def test_wait_for_and_gather(slow, pending):
    future, give = pending

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(future.as_asyncio(), 0.001)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(future, 0.001)
        await asyncio.to_thread(give, 2)
        assert await asyncio.gather(future, slow.give.call_one(3), future) == [2, 3, 2]
        assert [f.result() for f in [await asyncio.wait({future.as_asyncio()})][0][0]] == [2]

    asyncio.run(main())


def test_event_loop_awaits_thousands_of_futures(slow):
    async def main() -> None:
        futures = [slow.give.call_one(i) for i in range(2000)]
        assert await asyncio.gather(*futures) == list(range(2000))

    asyncio.run(main())


def test_ctrl_c_interrupts_a_get():
    script = f"""
import os, signal, threading, time
from monarch.actor import Channel
{SOURCE}
port, receiver = Channel.open()
future = receiver.recv()
waiting = threading.Event()

def interrupt():
    waiting.wait()
    stat = f"/proc/self/task/{{os.getpid()}}/stat"
    eventually("the main thread waits", lambda: open(stat).read().rpartition(")")[2].split()[0], lambda state: state == "S")
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=interrupt).start()
try:
    waiting.set()
    future.get()
except KeyboardInterrupt:
    print("interrupted", flush=True)
port.send(3)
print(future.get())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted\n3\n", "")


def test_local_call_has_a_future():
    local = this_proc().spawn("local", Slow)
    future = local.later.call_one()
    assert repr(future) == "<Future pending>"
    local.open.call_one("x").get()
    assert future.get() == "x"
    local.stop().get()


def test_receivers_give_futures():
    port, receiver = Channel.open()
    future = receiver.recv()
    with pytest.raises(TimeoutError):
        future.get(timeout=0)
    port.send(os.getpid())
    assert future.get() == os.getpid() and signal.getsignal(signal.SIGINT) is signal.default_int_handler


class Interrupted:
    """Raises KeyboardInterrupt the first time that it is unpickled in a process, like a Ctrl-C at that moment."""

    arrived = 0

    def __setstate__(self, state: Any) -> None:
        Interrupted.arrived += 1
        if Interrupted.arrived == 1:
            raise KeyboardInterrupt

    def __getstate__(self) -> Any:
        return "state"


class Gives(Actor):
    @endpoint
    def give(self) -> Interrupted:
        return Interrupted()


def test_ctrl_c_during_decoding_keeps_the_answer() -> None:
    future = this_proc().spawn("gives", Gives).give.call_one()
    with pytest.raises(KeyboardInterrupt):
        future.get()
    assert type(future.get()) is Interrupted and future.exception() is None


class LoopWithoutReaders(asyncio.SelectorEventLoop):
    """A loop that can watch no descriptors of its users, as asyncio permits."""

    def add_reader(self, *_: Any) -> None:
        raise NotImplementedError


def test_loop_without_readers_gets_answers() -> None:
    async def main() -> int:
        first = sum([(await slow.give.call_one(n)) for n in range(10)])
        return first + sum(await asyncio.gather(*(slow.give.call_one(n).as_asyncio() for n in range(10))))

    with this_host().spawn_procs() as procs:
        slow = procs.spawn("slow", Slow)
        loop = LoopWithoutReaders()
        try:
            assert loop.run_until_complete(main()) == 90
        finally:
            loop.close()
        eventually("the loop's thread has ended", lambda: all(t.name != "monarch-loop" for t in threading.enumerate()))


def test_start_of_an_operation_is_its_future() -> None:
    procs = this_host().spawn_procs()
    stopping = procs.stop()
    assert stopping.start() is stopping
    stopping.get(timeout=20)
