"""The time of the detection of a process's death: from the SIGKILL until a waiting call raises, and until its owner's `__supervise__` runs.

    python bench/kill_detection.py [--kills 500] [--procs 8]

An actor in a process of its own owns actors in others. The script waits for a call to one of them and then kills its process. The
time is taken before the signal. Times are in milliseconds, on one clock: that of the machine. Prints a JSON line; exits 1 after
a missing notice, or a notice of another process.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import signal
import sys
import threading
import time
from typing import Any

from monarch.actor import Actor, Channel, MeshFailure, Port, SupervisionError, endpoint, this_host


class Victim(Actor):
    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def wait(self, port: Port[None]) -> None:
        port.send(None)
        signal.pause()


class Owner(Actor):
    def __init__(self, port: Port[Any]) -> None:
        self.port = port

    @endpoint
    async def own(self, count: int) -> Any:
        self.procs = this_host().spawn_procs({"procs": count})
        return self.procs.spawn("victim", Victim)

    @endpoint
    async def stop_all(self) -> None:
        await self.procs.stop()

    async def __supervise__(self, failure: MeshFailure) -> bool:
        self.port.send((time.monotonic_ns(), failure.crashed_ranks, failure.reason.signal))
        return True


def measure(kills: int, at_once: int) -> tuple[list[float], list[float], int]:
    """Milliseconds to the exception and to `__supervise__`, and the number of notices of other processes."""
    port, notices = Channel.open()
    # A thread is in its `get()` when the signal arrives, like a script.
    ends: queue.Queue[int] = queue.Queue()
    calls: list[float] = []
    told: list[float] = []
    wrong = 0
    with this_host().spawn_procs() as owners:
        owner = owners.spawn("owner", Owner, port)
        while len(calls) < kills:
            victims = owner.own.call_one(at_once).get()
            for rank, pid in enumerate(victims.pid.call().get().values()):
                called, calling = Channel.open()
                call = victims.slice(procs=rank).wait.call_one(called)
                calling.recv().get()
                waiter = threading.Thread(target=_wait_for, args=(call, ends))
                waiter.start()
                time.sleep(0.002)  # until it waits
                start = time.monotonic_ns()
                os.kill(pid, signal.SIGKILL)
                calls.append((ends.get() - start) / 1e6)
                waiter.join()
                at, ranks, number = notices.recv().get()
                told.append((at - start) / 1e6)
                wrong += (ranks, number) != ([rank], signal.SIGKILL)
            owner.stop_all.call_one().get()
    return calls, told, wrong


def _wait_for(call: Any, ends: queue.Queue[int]) -> None:
    try:
        call.get()
    except SupervisionError:
        ends.put(time.monotonic_ns())


def summary(times: list[float]) -> dict[str, float]:
    ordered = sorted(times)
    at = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    return {name: round(ordered[min(len(ordered) - 1, int(q * len(ordered)))], 3) for name, q in at.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--procs", type=int, default=8, help="processes that live at once")
    options = parser.parse_args()
    calls, told, wrong = measure(options.kills, options.procs)
    line = {"bench": "kill_detection", "n": len(calls), "call_raises_ms": summary(calls), "supervise_ms": summary(told), "wrong": wrong}
    print(json.dumps(line), flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
