"""`returns_future`: bodies that the first observer runs, once."""

from __future__ import annotations

import asyncio
import contextvars
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from monarch.actor import Actor, Future, WouldBlockRuntime, context, current_rank, endpoint, returns_future, this_host


class Echo(Actor):
    @endpoint
    def give(self, value: Any) -> Any:
        return value


class AsyncUser(Actor):
    def __init__(self, slow: Any) -> None:
        self.slow = slow

    @endpoint
    async def lazily(self) -> Any:
        @returns_future
        async def whoami() -> str:
            await self.slow.give.call_one(1)
            return str(context().actor_instance)

        return [await whoami(), str(context().actor_instance)]


class SyncUser(Actor):
    @endpoint
    def lazily(self, slow: Any) -> Any:
        @returns_future
        async def whoami() -> Any:
            await slow.give.call_one(1)
            return str(context().actor_instance), dict(current_rank())

        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return whoami().get(), str(context().actor_instance)


def test_only_async_functions():
    for thing in (lambda: None, 5, None, print):
        with pytest.raises(TypeError, match="^returns_future requires an async function$"):
            returns_future(thing)


def test_body_runs_once_at_the_first_observation():
    runs = []

    @returns_future
    async def body(value: int, *, add: int = 0) -> list[int]:
        """The two steps of a call."""
        runs.append(value)
        await asyncio.sleep(0)
        return [value + add]

    assert body.__name__ == "body" and body.__doc__ == "The two steps of a call."
    future = body(1, add=2)
    assert isinstance(future, Future) and runs == []
    first = future.get()
    assert first == [3] and runs == [1]

    async def main() -> None:
        assert await future is first and await future.as_asyncio() is first
        other = body(5)
        one, two = await asyncio.gather(other, other)
        assert one is two == [5]

    asyncio.run(main())
    assert runs == [1, 5]
    body(9)  # never observed
    assert runs == [1, 5]


def test_body_runs_as_a_task_of_its_loop():
    @returns_future
    async def body() -> Any:
        return asyncio.get_running_loop(), asyncio.current_task()

    async def main() -> None:
        loop, task = await body()
        assert loop is asyncio.get_running_loop() and task is not asyncio.current_task()
        loop, _ = await body().as_asyncio()
        assert loop is asyncio.get_running_loop()

    asyncio.run(main())


def test_body_runs_on_the_getting_threads_private_loop():
    @returns_future
    async def body() -> Any:
        return threading.get_ident(), asyncio.get_running_loop()

    thread, loop = body().get()
    assert thread == threading.get_ident() and not loop.is_closed()

    async def main() -> None:
        future = body()
        with pytest.warns(UserWarning, match="active event loop"):
            thread, loop = future.get()
        assert thread != threading.get_ident() and loop is not asyncio.get_running_loop()

    asyncio.run(main())


def test_thread_keeps_its_loop_until_it_ends():
    @returns_future
    async def body() -> Any:
        return asyncio.get_running_loop()

    loops: list[Any] = []

    def run() -> None:
        loops.extend(body().get() for _ in range(3))
        assert not loops[0].is_closed()
        # The thread has no loop of its own for this code.
        with pytest.raises(RuntimeError):
            asyncio.get_event_loop_policy().get_event_loop()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert len(loops) == 3 and len(set(loops)) == 1
    assert loops[0] is not body().get() and body().get() is body().get()
    assert loops[0].is_closed() and not body().get().is_closed()


def test_get_cancels_tasks_that_its_body_left():
    ended: list[str] = []

    async def left(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(name)

    @returns_future
    async def body(name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(left(name))
        await asyncio.sleep(0)
        if name == "raises":
            raise KeyError(name)
        return task

    task = body("returns").get()
    assert ended == ["returns"] and task.cancelled()
    with pytest.raises(KeyError):
        body("raises").get()
    assert ended == ["returns", "raises"]


def test_main_thread_closes_its_loop_at_exit():
    script = """
import asyncio, threading
from monarch.actor import returns_future

@returns_future
async def body():
    return asyncio.get_running_loop()

body().get()
done = threading.Event()
def run():
    body().get()
    done.set()
    threading.Event().wait()
threading.Thread(target=run, daemon=True).start()
done.wait()
print("over")
"""
    done = subprocess.run([sys.executable, "-X", "dev", "-W", "error", "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "over\n", "")


INTERRUPTED = """
import asyncio, signal, sys, threading
from monarch.actor import returns_future

def interrupt(*_):
    raise KeyboardInterrupt

# A handler of the program's own is left in place: the exception comes up in whatever the loop does.
if "own" in sys.argv:
    signal.signal(signal.SIGINT, interrupt)
main = threading.get_ident()

@returns_future
async def body():
    try:
        if "taken" in sys.argv:  # by this thread, so that it interrupts no system call of the main thread
            asyncio.get_running_loop().call_later(0.3, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGINT))
        elif "inside" in sys.argv:
            signal.pthread_kill(main, signal.SIGINT)
        else:
            asyncio.get_running_loop().call_soon(signal.pthread_kill, main, signal.SIGINT)
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        if "returns" in sys.argv:
            return "late"
        if "raises" in sys.argv:
            raise KeyError("late")
        raise

async def on_a_loop(future):
    future.get()

future = body()
try:
    if "beside" in sys.argv:
        import warnings
        warnings.simplefilter("ignore")
        asyncio.run(on_a_loop(future))
    else:
        future.get()
except KeyboardInterrupt:
    print("interrupted")
for _ in range(2):
    try:
        future.get()
    except asyncio.CancelledError:
        print("cancelled")

@returns_future
async def after():
    return "usable"

print(after().get())
"""


@pytest.mark.parametrize("then", ["raises", "returns", "passes on"])
@pytest.mark.parametrize(
    ("where", "handler"),
    # A loop of asyncio takes the first interrupt for itself: a handler of the program's own interrupts `get()` beside it.
    [("inside", "own"), ("inside", "default"), ("loop", "own"), ("loop", "default"), ("beside", "own"), ("beside taken", "own")],
)
def test_interrupted_get_gives_cancelled_error(where: str, handler: str, then: str):
    command = [sys.executable, "-c", INTERRUPTED, *where.split(), handler, then]
    done = subprocess.run(command, capture_output=True, text=True, timeout=25)
    assert (done.returncode, done.stdout) == (0, "interrupted\ncancelled\ncancelled\nusable\n"), done.stderr


WAITING = """
import asyncio, signal, threading
from monarch.actor import returns_future

begun = threading.Event()
end = threading.Event()

@returns_future
async def body():
    # This thread takes the signal, so that it interrupts no system call of the main thread.
    asyncio.get_running_loop().call_later(0.3, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGINT))
    begun.set()
    await asyncio.to_thread(end.wait)
    return "for the other"

future = body()
other = threading.Thread(target=future.get)
other.start()
begun.wait()
try:
    future.get(timeout=20)
except KeyboardInterrupt:
    print("interrupted")
end.set()
other.join()
print(future.get())
"""


def test_second_observer_can_be_interrupted():
    done = subprocess.run([sys.executable, "-c", WAITING], capture_output=True, text=True, timeout=25)
    assert (done.returncode, done.stdout) == (0, "interrupted\nfor the other\n"), done.stderr


def test_body_has_the_context_of_the_caller():
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")

    @returns_future
    async def body() -> list[str]:
        found = [variable.get()]
        await asyncio.sleep(0)
        variable.set("inner")
        await asyncio.sleep(0)
        return [*found, variable.get()]

    variable.set("called")
    future, other = body(), body()
    variable.set("observed")
    assert future.get() == ["called", "inner"]

    async def main() -> None:
        assert await other == ["called", "inner"]
        assert variable.get() == "observed"

    asyncio.run(main())
    assert variable.get() == "observed"


def test_errors_of_a_body():
    error = KeyError("boo")

    @returns_future
    async def body() -> None:
        await asyncio.sleep(0)
        raise error

    future = body()
    for _ in range(2):
        with pytest.raises(KeyError) as caught:
            future.get()
        assert caught.value is error
    assert future.exception() is error


def test_get_that_times_out_cancels_the_body():
    cancelled = []

    @returns_future
    async def body() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(1)
            raise

    future = body()
    with pytest.raises(TimeoutError) as first:
        future.get(timeout=0.01)
    assert cancelled == [1]
    with pytest.raises(TimeoutError) as again:
        future.get()
    assert again.value is first.value

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await future

    asyncio.run(main())


def test_get_that_is_interrupted_cancels_the_body():
    script = """
import asyncio, os, signal, threading
from monarch.actor import returns_future
cancelled = []

@returns_future
async def body():
    try:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        cancelled.append(1)
        raise

future = body()
try:
    future.get()
except KeyboardInterrupt:
    print("interrupted", cancelled)
try:
    future.get()
except asyncio.CancelledError:
    print("cancelled")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted [1]\ncancelled\n", "")


def test_later_observers_only_wait():
    started, go = threading.Event(), threading.Event()

    @returns_future
    async def body() -> list[int]:
        started.set()
        await asyncio.to_thread(go.wait)
        return [1]

    future = body()
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(future.get)
        started.wait()
        with pytest.raises(TimeoutError):
            future.get(timeout=0.01)  # ends this wait only
        others = [pool.submit(future.get) for _ in range(2)]

        async def main() -> Any:
            waiting = future.as_asyncio()
            go.set()
            return await waiting

        value = asyncio.run(main())
        assert value == [1] and all(f.result() is value for f in (first, *others))


def test_get_in_a_body_that_a_get_drives():
    @returns_future
    async def inner() -> int:
        return 2

    @returns_future
    async def outer() -> int:
        with pytest.raises(WouldBlockRuntime):
            inner().get()
        return await inner()

    assert outer().get() == 2
    assert issubclass(WouldBlockRuntime, RuntimeError)


def test_get_on_the_loop_that_runs_the_body():
    gate: list[Any] = []

    @returns_future
    async def body() -> int:
        gate.append(asyncio.Event())
        await gate[0].wait()
        return 3

    async def main() -> None:
        future = body()
        waiting = future.as_asyncio()
        await asyncio.sleep(0)
        with pytest.raises(WouldBlockRuntime):
            future.get()
        gate[0].set()
        assert await waiting == 3 and future.get() == 3

    asyncio.run(main())


def test_result_of_a_cancelled_body_is_ignored():
    @returns_future
    async def body() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "late"
        return "never"

    future = body()
    for _ in range(2):
        with pytest.raises(TimeoutError):
            future.get(timeout=0.01)


def test_cancelled_observer_of_a_body_affects_no_other():
    gate: list[Any] = []

    @returns_future
    async def body() -> int:
        gate.append(asyncio.Event())
        await gate[0].wait()
        return 1

    async def main() -> None:
        future = body()
        first, second = future.as_asyncio(), future.as_asyncio()
        waiter = asyncio.create_task(_awaited(future))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        first.cancel()
        waiter.cancel()
        await asyncio.sleep(0)
        gate[0].set()
        assert await second == 1 and await future == 1

    asyncio.run(main())


async def _awaited(future: Any) -> Any:
    return await future


def test_body_in_an_actor_has_its_context():
    mesh = this_host().spawn_procs()
    slow = mesh.spawn("echo", Echo)
    seen, name = mesh.spawn("user", AsyncUser, slow).lazily.call_one().get()
    assert seen == name == "<root>.<test_returns_future.AsyncUser user>"
    (seen, rank), name = mesh.spawn("user", SyncUser).lazily.call_one(slow).get()
    assert seen == name and rank == {}
    mesh.stop().get()


def test_start_runs_the_body_without_a_reader() -> None:
    begun = threading.Event()

    @returns_future
    async def body() -> int:
        begun.set()
        return 5

    future = body()
    assert future.start() is future
    assert begun.wait(20)
    assert future.start().get(timeout=20) == 5

    async def main() -> int:
        begun.clear()
        started = body().start()
        while not begun.is_set():  # polls: the body runs on this loop
            await asyncio.sleep(0)
        return await started

    assert asyncio.run(main()) == 5


def test_start_without_a_thread_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    @returns_future
    async def body() -> int:
        return 5

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    future = body()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        future.start()
    with pytest.raises(RuntimeError, match="^can't start new thread$"):
        future.get(timeout=20)
