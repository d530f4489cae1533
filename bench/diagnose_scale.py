"""The time of a diagnosis of a job with many procs: the first look, and the median of the next ones.

    python bench/diagnose_scale.py [--procs 64 512] [--looks 5]

Prints JSON lines. The first look at a process imports what reports its waits and resources; goals are 2 s for 64 procs and 5 s for 512.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time

from monarch.actor import Actor, endpoint, this_host
from monarch.telemetry import diagnose


class Worker(Actor):
    @endpoint
    def step(self, number: int) -> int:
        return number + 1


def look() -> float:
    """The seconds of a diagnosis. A healthy job has no cause."""
    start = time.perf_counter()
    found = diagnose()
    seconds = time.perf_counter() - start
    if found.causes:
        raise SystemExit(f"diagnose_scale: a healthy job has a cause: {found.causes[0]}")
    return seconds


def measure(procs: int, looks: int) -> None:
    mesh = this_host().spawn_procs({"procs": procs})
    workers = mesh.spawn("workers", Worker)
    workers.step.call(1).get()
    first = look()
    later = statistics.median(look() for _ in range(looks))
    mesh.stop().get()
    row = {"bench": f"diagnose_{procs}_procs", "first_s": round(first, 2), "later_s": round(later, 2), "looks": looks}
    print(json.dumps(row), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--procs", type=int, nargs="+", default=[64, 512])
    parser.add_argument("--looks", type=int, default=5)
    given = parser.parse_args()
    for procs in given.procs:
        measure(procs, given.looks)
    return 0


if __name__ == "__main__":
    sys.exit(main())
