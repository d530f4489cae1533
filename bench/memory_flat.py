"""Memory over a million calls and over 10,000 arguments of 1 MiB: flat, in the client and in the proc.

    python bench/memory_flat.py [--calls 1000000] [--arguments 10000] [--limit 8]

Samples the resident memory of both processes 20 times on the way and prints a JSON line for each part: the samples, and the growth
from the one after a tenth of the work (by then pools and arenas have their size) to the greatest one after it. Exits 1 if any growth
is over --limit MiB.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from monarch.actor import Actor, endpoint, this_host

SAMPLES = 20
WARM = SAMPLES // 10
IN_FLIGHT = 1000  # calls in flight before their results are fetched
MIB = 1 << 20


class Sink(Actor):
    @endpoint
    def echo(self, x: int) -> int:
        return x

    @endpoint
    def length(self, data: bytes) -> int:
        return len(data)

    @endpoint
    def pid(self) -> int:
        return os.getpid()


def rss_mib(pid: int) -> float:
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") / MIB


def measure(name: str, count: int, proc: int, work: Callable[[int], None], limit: float) -> bool:
    """Does `count` units of work in equal portions, sampling after each; True if memory stayed flat."""
    samples: dict[str, list[float]] = {"client": [], "proc": []}
    for _ in range(SAMPLES):
        work(max(1, count // SAMPLES))
        samples["client"].append(round(rss_mib(os.getpid()), 2))
        samples["proc"].append(round(rss_mib(proc), 2))
    growth = {who: round(max(values[WARM:]) - values[WARM - 1], 2) for who, values in samples.items()}
    print(json.dumps({"bench": f"memory_flat/{name}", "n": count, "unit": "MiB", "growth": growth, "rss": samples}), flush=True)
    return max(growth.values()) <= limit


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=1_000_000)
    parser.add_argument("--arguments", type=int, default=10_000)
    parser.add_argument("--limit", type=float, default=8.0, help="MiB of growth")
    options = parser.parse_args()

    sink = this_host().spawn_procs(per_host={"procs": 1}).spawn("sink", Sink)
    proc = sink.pid.call_one().get()

    def calls(count: int) -> None:
        while count > 0:
            for future in [sink.echo.call_one(1) for _ in range(min(count, IN_FLIGHT))]:
                future.get()
            count -= IN_FLIGHT

    def arguments(count: int) -> None:
        for index in range(count):
            data = bytes([index % 256]) * MIB
            assert sink.length.call_one(data).get() == MIB

    flat = [measure("calls", options.calls, proc, calls, options.limit)]
    flat.append(measure("arguments_1MiB", options.arguments, proc, arguments, options.limit))
    return 0 if all(flat) else 1


if __name__ == "__main__":
    sys.exit(main())
