"""Times that bench/tensor.py takes, and the lines that it prints."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence
from typing import Any


def put(part: str, what: str, values: Sequence[float], unit: str, goal: str = "", **more: Any) -> None:
    """Prints a measure as a line of JSON."""
    ordered = sorted(values)
    first, middle, last = statistics.quantiles(ordered, n=4, method="inclusive") if len(ordered) > 1 else ordered * 3
    row = {"part": part, "what": what, "median": middle, "quartiles": [first, last], "n": len(ordered), "unit": unit, "goal": goal, **more}
    print(json.dumps(row), flush=True)


def ratio(part: str, what: str, ours: Sequence[float], theirs: Sequence[float], goal: str = "") -> None:
    put(part, what, [a / b for a, b in zip(ours, theirs, strict=True)], "x", goal)


class Watch:
    """Wall time, and processor time of this thread and of this process, in seconds, from its making."""

    def __init__(self) -> None:
        self._began = _times()

    def wall(self) -> float:
        return time.perf_counter() - self._began[0]

    def thread(self) -> float:
        return time.thread_time() - self._began[1]

    def process(self) -> float:
        return time.process_time() - self._began[2]


def _times() -> tuple[float, float, float]:
    return time.perf_counter(), time.thread_time(), time.process_time()


class WorkerWatch:
    """Processor time of the first worker: of the thread that executes operations, and of its process. Earlier commands are done then."""

    def __init__(self) -> None:
        from monarch import tensor

        self._ask = tensor.remote(_times)
        self._began = self._now()

    def _now(self) -> tuple[float, float, float]:
        return list(self._ask.call().get().values())[0]

    def spent(self) -> tuple[float, float]:
        now = self._now()
        return now[1] - self._began[1], now[2] - self._began[2]


def text(row: dict[str, Any]) -> str:
    def number(value: float) -> str:
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"

    low, high = row["quartiles"]
    spread = f"({number(low)} to {number(high)})" if row["n"] > 1 else ""
    return f"{row['what']:<72} {number(row['median']):>9} {row['unit']:<5} {spread:<22} {row['goal']}"
