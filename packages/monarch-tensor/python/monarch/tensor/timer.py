"""Times of named parts of a program, on the process that runs them, and remote functions that take them on the workers."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from monarch.tensor._functions.remote_function import Remote

if TYPE_CHECKING:
    from collections.abc import Generator

_DEFAULT = "default"


class ExecutionTimer:
    """Named timers of this process. With a GPU they take the time between two points of the device's current stream, else that of the CPU.

    A timer has all its measurements since `reset`. The name None is that of the default timer. Thread-safe.
    """

    _lock = threading.Lock()
    # The begin of each measurement in progress.
    _started: dict[str, Any] = {}
    _finished: dict[str, list[tuple[Any, Any]]] = {}

    @classmethod
    def start(cls, name: str | None = None, use_cpu: bool = False) -> None:
        """Begins a measurement. `ValueError` if one with this name is under way."""
        name = name or _DEFAULT
        with cls._lock:
            if name in cls._started:
                raise ValueError(f"the timer {name!r} is running: stop it first")
            cls._started[name] = _now(use_cpu)

    @classmethod
    def stop(cls, name: str | None = None, use_cpu: bool = False) -> None:
        """Ends it. `ValueError` if none is under way, or with `use_cpu` if the one under way takes the time of the device."""
        name = name or _DEFAULT
        with cls._lock:
            begin = cls._started.get(name)
            if begin is None:
                raise ValueError(f"the timer {name!r} is not running: start it first")
            if use_cpu and not isinstance(begin, int):
                raise ValueError(f"the timer {name!r} was started without use_cpu, and takes the time of the device")
            del cls._started[name]
            cls._finished.setdefault(name, []).append((begin, _now(isinstance(begin, int))))

    @classmethod
    @contextmanager
    def time(cls, name: str | None = None, use_cpu: bool = False) -> Generator[None]:
        """Measures what is inside."""
        cls.start(name, use_cpu)
        try:
            yield
        finally:
            cls.stop(name, use_cpu)

    @classmethod
    def get_latency(cls, name: str | None = None) -> float:
        """Milliseconds of the last measurement. `KeyError` if there is none."""
        return _milliseconds(cls._of(name)[-1])

    @classmethod
    def get_average(cls, name: str | None = None) -> float:
        """Milliseconds of the measurements on average. `KeyError` if there is none."""
        found = cls._of(name)
        return sum(map(_milliseconds, found)) / len(found)

    @classmethod
    def summary(cls) -> dict[str, dict[str, float]]:
        """Of each timer: the number of its measurements, and their `total_ms`, `average_ms`, `min_ms` and `max_ms`."""
        with cls._lock:
            finished = {name: list(pairs) for name, pairs in cls._finished.items()}
        found: dict[str, dict[str, float]] = {}
        for name, pairs in finished.items():
            times = [_milliseconds(pair) for pair in pairs]
            total = sum(times)
            found[name] = {
                "count": len(times),
                "total_ms": total,
                "average_ms": total / len(times),
                "min_ms": min(times),
                "max_ms": max(times),
            }
        return found

    @classmethod
    def reset(cls, name: str | None = None) -> None:
        """Forgets the measurements of a timer, or of all, also one that is under way."""
        with cls._lock:
            for table in (cls._started, cls._finished):
                if name is None:
                    table.clear()
                else:
                    table.pop(name, None)

    @classmethod
    def _of(cls, name: str | None) -> list[tuple[Any, Any]]:
        name = name or _DEFAULT
        with cls._lock:
            found = list(cls._finished.get(name, ()))
        if not found:
            raise KeyError(f"the timer {name!r} has no measurement")
        return found


def _now(use_cpu: bool) -> Any:
    if use_cpu or not torch.cuda.is_available():
        return time.perf_counter_ns()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _milliseconds(pair: tuple[Any, Any]) -> float:
    begin, end = pair
    if isinstance(begin, int):
        return (end - begin) / 1e6
    end.synchronize()
    return begin.elapsed_time(end)


def _start(name: str | None = None, use_cpu: bool = False) -> None:
    ExecutionTimer.start(name, use_cpu)


def _stop(name: str | None = None, use_cpu: bool = False) -> None:
    ExecutionTimer.stop(name, use_cpu)


def _latency(name: str | None = None) -> torch.Tensor:
    return torch.tensor(ExecutionTimer.get_latency(name), dtype=torch.float64)


def _average(name: str | None = None) -> torch.Tensor:
    return torch.tensor(ExecutionTimer.get_average(name), dtype=torch.float64)


def _summary() -> dict[str, dict[str, float]]:
    return ExecutionTimer.summary()


def _reset(name: str | None = None) -> None:
    ExecutionTimer.reset(name)


def _number(*_: Any, **__: Any) -> torch.Tensor:
    return torch.empty((), dtype=torch.float64)


# These run on the workers, in the order of torch calls; their arguments are those of `ExecutionTimer`. `get_..._ms` return a tensor; the
# values of a summary come by `.call()`.
execution_timer_start = Remote(_start)
execution_timer_stop = Remote(_stop)
execution_timer_reset = Remote(_reset)
get_execution_timer_latency_ms = Remote(_latency, _number)
get_execution_timer_average_ms = Remote(_average, _number)
get_execution_timer_summary = Remote(_summary)
