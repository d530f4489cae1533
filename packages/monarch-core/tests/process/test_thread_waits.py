"""The threads that other threads wait for, and the exceptions that ended threads and tasks."""

from __future__ import annotations

import asyncio
import sys
import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from eventually import eventually

from monarch._core.observe import raised
from monarch._core.observe.thread_waits import ThreadWaits


def waits(ident: int | None) -> dict[str, Any]:
    stacks: dict[int, list[Any]] = {}
    for number, frame in sys._current_frames().items():  # pyright: ignore[reportPrivateUsage]
        stacks[number] = []
        outer: Any = frame
        while outer is not None:
            stacks[number].append(outer)
            outer = outer.f_back
    assert ident is not None
    return (ThreadWaits(stacks).wait(ident) if ident in stacks else None) or {}


def test_joined_thread_is_shown() -> None:
    end = threading.Event()
    other = threading.Thread(target=end.wait, name="other")
    other.start()
    joins = threading.Thread(target=other.join)
    joins.start()
    assert eventually("the thread joins", lambda: waits(joins.ident)) == {"holder": other.ident, "thing": "the end of thread other"}
    end.set()
    joins.join()
    limited = threading.Thread(target=other.join, args=(60.0,))
    limited.start()
    limited.join()


def test_pool_that_waits_for_itself_is_shown() -> None:
    inner: list[Any] = []
    with ThreadPoolExecutor(1) as pool:

        def outer() -> None:
            inner.append(pool.submit(int))
            with suppress(CancelledError):
                inner[0].result()

        asks = threading.Thread(target=lambda: pool.submit(outer).result())
        asks.start()
        try:
            holder = eventually("the thread waits for the task", lambda: waits(asks.ident).get("holder"))
            seen = eventually("the task waits for its pool", lambda: waits(holder))
        finally:
            eventually("the task has begun", lambda: inner)
            inner[0].cancel()
            asks.join()
    assert seen["holder"] == holder and "the only thread of the pool waits for such tasks" in seen["thing"]


def test_queued_task_of_a_pool_is_not_shown() -> None:
    end = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(end.wait)
        queued = pool.submit(int)
        asks = threading.Thread(target=queued.result)
        asks.start()
        eventually("the thread has a frame", lambda: asks.ident in sys._current_frames())  # pyright: ignore[reportPrivateUsage]
        assert waits(asks.ident) == {}
        end.set()
        asks.join()


def test_exception_of_a_thread_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "excepthook", threading.__excepthook__)
    raised.of_threads.clear()
    raised.install()
    thread = threading.Thread(target=list[int]().pop, name="prefetch")
    thread.start()
    thread.join()
    [row] = raised.raised(())
    assert (row["kind"], row["name"], row["error"]) == ("thread", "prefetch", "IndexError: pop from empty list")
    assert row["frames"]
    raised.of_threads.clear()


def test_hook_of_a_program_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def own(_: object) -> None:
        pass

    monkeypatch.setattr(threading, "excepthook", own)
    raised.install()
    assert threading.excepthook is own


def test_exception_of_a_task_is_shown() -> None:
    async def fail() -> None:
        raise ValueError("bad\nshard")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        task = loop.create_task(fail())
        await asyncio.wait([task])
        [row] = raised.raised([loop])
        assert (row["kind"], row["error"], row["frames"][0][2].rpartition(".")[2]) == ("task", "ValueError: bad", "fail")
        assert task.exception() is not None
        assert not raised.raised([loop])

    asyncio.run(main())
