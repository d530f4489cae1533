"""The duration of a call to all ranks of several hosts, and the number of frames that the caller sends for it.

    python bench/casts.py [--hosts 3] [--procs 8] [--calls 500]

Workers of this machine, over unix sockets. "tree" is `call` on all ranks; "direct" is `call_one` on each, sent before the first answer is
awaited. Prints one JSON line for each.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "packages/monarch-core/tests/process"))

from worker_processes import Workers

from monarch._core.process.current import current_process
from monarch.actor import Actor, endpoint


class Member(Actor):
    @endpoint
    def nothing(self) -> None:
        pass


def frames() -> int:
    hosts = current_process().hosts.native
    assert hosts is not None
    return hosts.sent()[1]


def measure(name: str, calls: int, one: Callable[[], object]) -> None:
    for _ in range(50):
        one()
    times: list[float] = []
    before, processor = frames(), time.process_time()
    for _ in range(calls):
        start = time.perf_counter()
        one()
        times.append(time.perf_counter() - start)
    found = {
        "case": name,
        "median_us": round(statistics.median(times) * 1e6),
        "cpu_us": round((time.process_time() - processor) / calls * 1e6),
        "frames": round((frames() - before) / calls, 2),
    }
    print(json.dumps(found), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--hosts", type=int, default=3)
    parser.add_argument("--procs", type=int, default=8)
    parser.add_argument("--calls", type=int, default=500)
    options = parser.parse_args()
    with Workers(options.hosts) as workers, workers.attach() as hosts:
        members = hosts.spawn_procs({"gpus": options.procs}).spawn("members", Member)
        singles = [members.slice(hosts=h, gpus=g) for h in range(options.hosts) for g in range(options.procs)]
        measure("tree", options.calls, lambda: members.nothing.call().get())
        measure("direct", options.calls, lambda: [f.get() for f in [s.nothing.call_one() for s in singles]])


if __name__ == "__main__":
    main()
