"""What pyfuse3 takes for trio: the lock by which its tasks take turns."""

from __future__ import annotations

from monarch.fs._kernel.nursery import Lock
from monarch.fs._kernel.poll_loop import Task, Waiter, current_loop, run


def _after(seconds: float) -> Waiter[None]:
    found = Waiter[None]()
    current_loop().call_later(seconds, lambda: found.set_result(None))
    return found


def test_tasks_take_turns() -> None:
    lock, turns, ended = Lock(), list[int](), Waiter[None]()

    async def work(number: int) -> None:
        for _ in range(3):
            async with lock:
                turns.append(number)
                await _after(0)
                # No other task has run in the meantime.
                assert turns[-1] == number
        if len(turns) == 15:
            ended.set_result(None)

    async def main() -> None:
        for number in range(5):
            current_loop().spawn(work(number))
        await ended

    run(main())
    assert sorted(turns) == sorted([*range(5)] * 3)


def test_cancelled_lock_request_blocks_no_other_task() -> None:
    lock, held, ended = Lock(), Waiter[None](), Waiter[None]()
    found: list[str] = []
    waiting: list[Task] = []

    async def first() -> None:
        async with lock:
            await held
        found.append("first")

    async def interrupted() -> None:
        task = current_loop().task
        assert task is not None
        waiting.append(task)
        try:
            async with lock:
                found.append("never")
        except InterruptedError:
            found.append("interrupted")
        # The task waits for something else when the lock is released.
        await _after(0.05)
        found.append("later")
        ended.set_result(None)

    async def last() -> None:
        async with lock:
            found.append("last")

    async def main() -> None:
        loop = current_loop()
        for work in (first, interrupted, last):
            loop.spawn(work())
        loop.call_later(0.01, lambda: waiting[0].resume(InterruptedError()))
        loop.call_later(0.02, lambda: held.set_result(None))
        await ended

    run(main())
    assert found == ["interrupted", "first", "last", "later"]
