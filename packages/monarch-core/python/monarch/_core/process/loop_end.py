"""The end of an event loop: tasks, async generators and the threads of its executor end first, in bounded time.

`asyncio.run` waits for each of them without a limit. This module leaves behind a task that does not end within its time, and reports it to
the exception handler of the loop.
"""

from __future__ import annotations

import asyncio
from _thread import start_new_thread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Seconds for each of the tasks, the generators, and the executor: the same time as for a cancelled coroutine of an actor.
END_TIME = 2.0


def end_loop(loop: Any) -> None:
    """Ends the remaining tasks of a loop that does not run, and closes it. Must not be called on a thread that runs another loop."""
    try:
        loop.run_until_complete(_end(loop))
    finally:
        loop.close()


async def _end(loop: Any) -> None:
    tasks = asyncio.all_tasks(loop) - {asyncio.current_task(loop)}
    for task in tasks:
        task.cancel()
    await _wait(loop, tasks, "a task")
    await _wait(loop, {loop.create_task(loop.shutdown_asyncgens())}, "an async generator")
    executor = getattr(loop, "_default_executor", None)
    if executor is not None:
        ended = loop.create_future()
        start_new_thread(_shut_down, (loop, executor, ended))
        if not await _wait(loop, {ended}, "a thread of the executor"):
            executor.shutdown(wait=False, cancel_futures=True)


async def _wait(loop: Any, left: set[Any], what: str) -> bool:
    """Waits for tasks, and cancels the ones that exceed their time. False if a task does not end even then."""
    if not left:
        return True
    done, left = await asyncio.wait(left, timeout=END_TIME)
    for one in done:
        # The exceptions of cancelled tasks are dropped.
        if not one.cancelled():
            one.exception()
    for one in left:
        one.cancel()
        if isinstance(one, asyncio.Task):
            # The task is destroyed with the loop, which has been reported.
            one._log_destroy_pending = False  # pyright: ignore
        loop.call_exception_handler({"message": f"{what} has not ended within {END_TIME:g} s of the end of its event loop", "future": one})
    if left:
        # One turn of the loop for tasks that only waited.
        await asyncio.wait(left, timeout=0.0)
    return not left


def _shut_down(loop: Any, executor: Any, ended: Any) -> None:
    executor.shutdown(wait=True)
    try:
        loop.call_soon_threadsafe(_set, ended)
    except RuntimeError:  # the loop is closed
        return


def _set(ended: Any) -> None:
    if not ended.done():
        ended.set_result(None)
