"""Event loops on simulated time: those of actors in a universe, and the one that a test of a universe runs on."""

from __future__ import annotations

import asyncio

from monarch._core._native import LoopSleep
from monarch._core.actor.async_actor import SharedSelector

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any, TypeVar

    from monarch._core._native import Timeline
    from monarch._core.process.process import LocalProcess
    from monarch._core.testing.simulated import SimulatedProcess

    R = TypeVar("R")


def group_of(process: LocalProcess) -> int:
    from monarch._core.testing.simulated import SimulatedProcess

    assert isinstance(process, SimulatedProcess)
    return process.group


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop whose time jumps when the whole universe waits. Work in its executors counts as work of the universe."""

    def __init__(self, process: LocalProcess, timeline: Timeline) -> None:
        self._timeline = timeline
        self._group = group_of(process)
        super().__init__(SharedSelector(process.native))

    def time(self) -> float:
        return self._timeline.now()

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        return _in_executor(self._timeline, self._group, super().run_in_executor, executor, func, args)


def _in_executor(timeline: Timeline, group: int, submit: Callable[..., Any], executor: Any, func: Any, args: Any) -> Any:
    def run() -> Any:
        timeline.enter(group)
        try:
            return func(*args)
        finally:
            timeline.step_out()

    # The work is enrolled from here until the loop has the result, so that the universe seems idle at no moment.
    timeline.enroll(group)
    try:
        future = submit(executor, run)
    except BaseException:
        timeline.dismiss(group)
        raise

    def over(_: object) -> None:
        timeline.dismiss(group)

    future.add_done_callback(over)
    return future


def run(process: SimulatedProcess, main: Coroutine[Any, Any, R]) -> R:
    """Like `asyncio.run`, on simulated time."""
    with asyncio.Runner(loop_factory=lambda: SimulatedLoop(process, process.simulation.timeline)) as runner:
        return runner.run(main)


class BorrowedLoop:
    """A running loop that is on simulated time until `give_back`."""

    __slots__ = ("loop", "sleeper")

    def __init__(self, process: LocalProcess, timeline: Timeline, loop: Any) -> None:
        selector: Any = getattr(loop, "_selector", None)
        if selector is None:
            raise RuntimeError(f"a Universe needs asyncio's own selector loop, not {loop!r}")
        if "select" in vars(selector):
            raise RuntimeError("the event loop is on the time of another Universe")
        self.loop: Any = loop
        sleeper = self.sleeper = LoopSleep(process.native, selector.fileno())
        real_select, submit = selector.select, loop.run_in_executor
        zero = loop.time() - timeline.now()
        group = group_of(process)

        def in_executor(executor: Any, func: Callable[..., Any], *args: Any) -> Any:
            return _in_executor(timeline, group, submit, executor, func, args)

        def select(timeout: float | None = None) -> Any:
            if timeout is None or timeout > 0:
                sleeper.sleep(timeout)
            return real_select(0)

        selector.select = select
        loop.time = lambda: zero + timeline.now()
        loop.run_in_executor = in_executor

    def give_back(self) -> None:
        loop = self.loop
        del loop._selector.select, loop.time, loop.run_in_executor
        self.sleeper.close()


def abandon(loop: Any) -> None:
    """Closes a loop whose process has been killed: no task on it runs any more."""
    for task in asyncio.all_tasks(loop):
        task._log_destroy_pending = False  # pyright: ignore
    asyncio._set_running_loop(None)
    asyncio.set_event_loop(None)
    loop.close()
