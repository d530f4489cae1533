"""The threads that other threads wait for: by `Thread.join`, and for results of a pool of threads (`concurrent.futures`)."""

from __future__ import annotations

import gc
import sys
from itertools import islice

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType
    from typing import Any

# The most frames from the innermost one that are looked at, and the most tasks of a pool.
_MOST_FRAMES = 8
_MOST_TASKS = 10_000


class ThreadWaits:
    """The waits between some threads: the frames of each, by its number, the innermost first."""

    def __init__(self, stacks: dict[int, list[FrameType]]) -> None:
        self._stacks = stacks
        self._wanted = {ident: future for ident, frames in stacks.items() if (future := _wanted_result(frames)) is not None}
        # The threads of each pool, by their common queue, and the futures that they work on.
        self._pools: dict[int, tuple[Any, list[int]]] = {}
        self._running: dict[int, int] = {}
        if self._wanted:
            for ident, frames in stacks.items():
                self._look_at_worker(ident, frames)

    def wait(self, ident: int) -> dict[str, Any] | None:
        """The thread for which this thread waits, as the caller of `waits` gets it; None for another wait, and one with a time limit."""
        other = _joined(self._stacks[ident])
        if other is not None and other.ident in self._stacks:
            return {"holder": other.ident, "thing": f"the end of thread {other.name}"}
        future = self._wanted.get(ident)
        if future is None or future.done():
            return None
        if id(future) in self._running:
            return {"holder": self._running[id(future)], "thing": "the result of a task"}
        for queue, workers in self._pools.values():
            futures = _futures(queue)
            if id(future) in futures and all(id(self._wanted.get(worker)) in futures for worker in workers):
                holder = ident if ident in workers else workers[0]
                threads = "the only thread of the pool waits" if len(workers) == 1 else f"all {len(workers)} threads of the pool wait"
                return {"holder": holder, "thing": f"a task of a pool that cannot begin, as {threads} for such tasks"}
        return None

    def _look_at_worker(self, ident: int, frames: list[FrameType]) -> None:
        for frame in frames:
            code = frame.f_code
            if not code.co_filename.endswith("/concurrent/futures/thread.py"):
                continue
            if code.co_name == "run" and (future := getattr(frame.f_locals.get("self"), "future", None)) is not None:
                self._running[id(future)] = ident
            if code.co_name == "_worker" and (queue := frame.f_locals.get("work_queue")) is not None:
                self._pools.setdefault(id(queue), (queue, []))[1].append(ident)


def _joined(frames: list[FrameType]) -> Any:
    threading = sys.modules.get("threading")
    code = None if threading is None else threading.Thread.join.__code__
    frame = next((one for one in frames[:_MOST_FRAMES] if one.f_code is code), None)
    return None if frame is None or frame.f_locals.get("timeout") is not None else frame.f_locals.get("self")


def _wanted_result(frames: list[FrameType]) -> Any:
    """The future for whose result a thread waits."""
    base = sys.modules.get("concurrent.futures._base")
    if base is None:
        return None
    codes = (base.Future.result.__code__, base.Future.exception.__code__)
    frame = next((one for one in frames[:_MOST_FRAMES] if one.f_code in codes), None)
    return None if frame is None or frame.f_locals.get("timeout") is not None else frame.f_locals.get("self")


def _futures(queue: Any) -> set[int]:
    """The ids of the futures of a queue. A `SimpleQueue` shows its items to the garbage collector only."""
    return {id(future) for item in islice(_items(queue), _MOST_TASKS) if (future := getattr(item, "future", None)) is not None}


def _items(queue: Any) -> Iterator[Any]:
    for one in gc.get_referents(queue):
        if isinstance(one, list):
            yield from list(one)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        else:
            yield one
