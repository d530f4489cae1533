"""A thousand procs on this machine: spawned, answering a `call()`, stopped; time, and memory while all are there.

    python bench/thousand_procs.py [--procs 1000]

Prints JSON lines. Memory is PSS (a page shared by n processes counts 1/n in each), summed over this process and all below it.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from pathlib import Path

from monarch.actor import Actor, endpoint, this_host


class Worker(Actor):
    @endpoint
    def pid(self) -> int:
        return os.getpid()


def descendants() -> list[int]:
    """Pids of all processes below this one."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found: list[int] = []
    todo = [os.getpid()]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def pss_mib(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def report(name: str, value: float, unit: str) -> None:
    print(json.dumps({"bench": name, "value": round(value, 3), "unit": unit}), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--procs", type=int, default=1000)
    count = parser.parse_args().procs
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

    start = time.perf_counter()
    procs = this_host().spawn_procs(per_host={"procs": count})
    workers = procs.spawn("workers", Worker)
    pids = list(workers.pid.call().get().values())
    report(f"spawned_and_answered/{count}", time.perf_counter() - start, "s")
    if len(set(pids)) != count:
        print(f"{len(set(pids))} different processes answered, not {count}", file=sys.stderr)
        return 1

    start = time.perf_counter()
    workers.pid.call().get()
    report(f"call_mesh/{count}", 1000 * (time.perf_counter() - start), "ms")

    everything = [os.getpid(), *descendants()]
    total = sum(pss_mib(pid) for pid in everything)
    report(f"pss/{count}", total, "MiB")
    report(f"pss_per_proc/{count}", total / count, "MiB")
    report(f"processes/{count}", len(everything), "processes")

    start = time.perf_counter()
    procs.stop().get()
    report(f"stopped/{count}", time.perf_counter() - start, "s")
    left = [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    if left:
        print(f"{len(left)} procs are still there after stop()", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
