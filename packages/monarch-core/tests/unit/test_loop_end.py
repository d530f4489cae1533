"""The end of an event loop: remaining tasks end first, and tasks that do not end are left behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from monarch._core.process import loop_end
from monarch._core.process.loop_end import end_loop
from monarch._core.process.thread_loop import thread_loop


class Loop:
    """A loop, and the reports to its exception handler."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.reported: list[str] = []
        self.loop.set_exception_handler(lambda _, context: self.reported.append(context["message"]))

    def left(self, body: Any) -> Any:
        return self.loop.run_until_complete(body)


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    assert made.loop.is_closed()


async def numbers(said: list[str]) -> AsyncIterator[int]:
    try:
        yield 1
    finally:
        await asyncio.sleep(0)
        said.append("finally")


async def first(generator: AsyncIterator[int]) -> int:
    return await anext(generator)


def test_open_generators_run_their_finally(loop: Loop) -> None:
    said: list[str] = []
    generator = numbers(said)
    loop.left(first(generator))
    end_loop(loop.loop)
    assert (said, loop.reported) == (["finally"], [])


def test_executor_finishes_its_work(loop: Loop) -> None:
    said: list[str] = []
    go = threading.Event()

    async def begin() -> None:
        asyncio.get_running_loop().run_in_executor(None, lambda: (go.wait(), said.append("done")))
        asyncio.get_running_loop().call_soon(go.set)

    loop.left(begin())
    end_loop(loop.loop)
    assert (said, loop.reported) == (["done"], [])


def test_work_of_the_executor_may_need_the_loop(loop: Loop) -> None:
    said: list[str] = []

    async def say() -> None:
        said.append("on the loop")

    async def begin() -> None:
        running = asyncio.get_running_loop()
        running.run_in_executor(None, lambda: asyncio.run_coroutine_threadsafe(say(), running).result())

    loop.left(begin())
    end_loop(loop.loop)
    assert (said, loop.reported) == (["on the loop"], [])


def test_exceptions_of_cancelled_tasks_are_dropped(loop: Loop) -> None:
    async def odd() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            raise KeyError("cancelled")

    async def begin() -> Any:
        task = asyncio.create_task(odd())
        await asyncio.sleep(0)
        return task

    task = loop.left(begin())
    end_loop(loop.loop)
    assert task.done() and loop.reported == []


async def refuses() -> None:
    while True:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            continue


async def endless_generator() -> AsyncIterator[int]:
    try:
        yield 1
    finally:
        await refuses()


def test_endless_remains_are_left_behind(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_end, "END_TIME", 0.01)
    generator, go = endless_generator(), threading.Event()

    async def begin() -> Any:
        task = asyncio.create_task(refuses())
        await anext(generator)
        asyncio.get_running_loop().run_in_executor(None, go.wait)
        return task

    task = loop.left(begin())
    end_loop(loop.loop)
    words = [f"{what} has not ended within 0.01 s of the end of its event loop" for what in _LEFT]
    assert loop.reported == words and not task.done()
    go.set()


_LEFT = ("a task", "an async generator", "a thread of the executor")


def test_loop_of_a_thread_ends_with_the_thread() -> None:
    said: list[str] = []

    def run() -> None:
        thread = thread_loop()
        # The list holds a reference, so the reference count does not close the generator.
        said.append(generator := numbers(said))  # type: ignore[arg-type]
        thread.runner.run(first(generator))
        thread.loop.run_in_executor(None, lambda: said.append("executor"))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert sorted(said[1:]) == ["executor", "finally"]
