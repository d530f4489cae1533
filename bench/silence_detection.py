"""The time until a process in which Python does not run counts as unresponsive, and the absence of false deaths.

    python bench/silence_detection.py [--count 10]

Two causes: SIGSTOP, and a native thread that keeps the GIL. The time is from the cause until the agent shows the state, for the GIL with
the stacks of all threads. The process continues afterwards and answers. Prints one JSON line for each cause, milliseconds.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import time
from collections.abc import Callable
from typing import Any

from monarch._core._native import hold_gil
from monarch._core.observe import inspection
from monarch._core.process.current import current_process
from monarch.actor import Actor, endpoint, this_host

# Seconds, longer than the detection takes.
HOLD_S = 7.0
LOOK_S = 0.02


class Worker(Actor):
    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def keep_the_gil(self) -> int:
        hold_gil(0.0, HOLD_S)
        time.sleep(0.05)
        return os.getpid()


def row(pid: int) -> dict[str, Any]:
    """The agent's record of the process."""
    cell = current_process().native.inspect(inspection.STATE)
    cell.wait(0)
    return next(p for p in json.loads(cell.results()[0].raw())["procs"] if p["pid"] == pid)


def wait_until(seen: Callable[[dict[str, Any]], Any], pid: int) -> float:
    start = time.monotonic()
    while not seen(row(pid)):
        time.sleep(LOOK_S)
    return 1000 * (time.monotonic() - start)


def report(cause: str, found: list[float]) -> None:
    line = {"bench": f"silence/{cause}", "unit": "ms", "n": len(found), "p50": statistics.median(found), "max": max(found)}
    print(json.dumps({k: round(v, 1) if isinstance(v, float) else v for k, v in line.items()}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10)
    count = parser.parse_args().count
    moments = random.Random(0)
    worker = this_host().spawn_procs(per_host={"procs": 2}).spawn("worker", Worker).slice(procs=1)
    pid = worker.pid.call_one().get()
    stopped: list[float] = []
    for _ in range(count):
        # The moment is at any time between two checks of the agent.
        time.sleep(moments.uniform(0.0, 2.0))
        os.kill(pid, signal.SIGSTOP)
        stopped.append(wait_until(lambda p: p["state"] == "unresponsive", pid))
        os.kill(pid, signal.SIGCONT)
        assert worker.pid.call_one().get() == pid
    report("stopped", stopped)
    held: list[float] = []
    for _ in range(count):
        time.sleep(moments.uniform(0.0, 2.0))
        answer = worker.keep_the_gil.call_one()
        held.append(wait_until(lambda p: p["stacks"] is not None, pid))
        assert answer.get() == pid
    report("gil_held", held)


if __name__ == "__main__":
    main()
