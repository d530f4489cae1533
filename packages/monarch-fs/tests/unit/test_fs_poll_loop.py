"""The poll loop: tasks, results of other threads, time limits, and its end."""

from __future__ import annotations

import os
import threading

import pytest

from monarch.fs._kernel import poll_loop
from monarch.fs._kernel.poll_loop import Waiter, current_loop, run


def test_result_of_another_thread_arrives() -> None:
    async def main() -> list[int]:
        waiters = [Waiter[int]() for _ in range(500)]
        thread = threading.Thread(target=lambda: [waiter.set_result(n) for n, waiter in enumerate(waiters)])
        thread.start()
        found = [await waiter for waiter in waiters]
        thread.join()
        return found

    assert run(main()) == list(range(500))


def test_shared_waiter_takes_its_first_result() -> None:
    shared, ends = Waiter[str](), [Waiter[str]() for _ in range(3)]

    async def wait(end: Waiter[str]) -> None:
        end.set_result(await shared)

    async def main() -> list[str]:
        for end in ends:
            current_loop().spawn(wait(end))
        current_loop().call_later(0, lambda: shared.set_result("first"))
        return [await end for end in ends]

    assert run(main()) == ["first"] * 3
    assert not shared.set_result("second") and not shared.set_exception(ValueError())


def test_exception_of_a_waiter_is_raised_on_await() -> None:
    async def main() -> str:
        waiter = Waiter[int]()
        waiter.set_exception(OSError(5, "source left"))
        try:
            return str(await waiter)
        except OSError as e:
            return str(e)

    assert run(main()) == "[Errno 5] source left"


def test_task_limit_applies_to_each_wait() -> None:
    async def main() -> int:
        task = current_loop().task
        assert task is not None
        task.limit, count = 0.01, 0
        for _ in range(3):
            try:
                await Waiter[None]()
            except TimeoutError:
                count += 1
        return count

    assert run(main()) == 3


def test_exception_of_any_task_ends_the_loop() -> None:
    async def fails() -> None:
        raise KeyError("culprit")

    async def main() -> None:
        current_loop().spawn(fails())
        await Waiter[None]()

    with pytest.raises(KeyError, match="culprit"):
        run(main())
    with pytest.raises(RuntimeError, match="no poll loop"):
        poll_loop.call_soon_threadsafe(lambda: None)


def test_ended_loop_closes_its_tasks() -> None:
    late, closed = Waiter[None](), list[str]()

    async def forever() -> None:
        try:
            await late
        finally:
            closed.append("closed")

    async def main() -> None:
        current_loop().spawn(forever())
        turn = Waiter[None]()
        current_loop().call_later(0, lambda: turn.set_result(None))
        await turn

    descriptors = len(os.listdir("/proc/self/fd"))
    run(main())
    assert closed == ["closed"] and late.set_result(None)
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_descriptor_is_awaited() -> None:
    async def main() -> bytes:
        read, write = os.pipe()
        try:
            loop = current_loop()
            loop.call_later(0, lambda: os.write(write, b"x"))
            await loop.wait_readable(read)
            return os.read(read, 9)
        finally:
            os.close(read)
            os.close(write)

    assert run(main()) == b"x"


def test_second_loop_is_refused() -> None:
    async def nothing() -> None: ...

    async def main() -> None:
        with pytest.raises(RuntimeError, match="already"):
            run(nothing())

    run(main())
