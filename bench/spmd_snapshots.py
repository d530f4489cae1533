"""Snapshots of one rank: the speed of copy and restore, and the cost for a training step.

    python bench/spmd_snapshots.py [--mib 1024] [--saves 8] [--hosts 1,2] [--json]

`pack` is the time of the program in `save`, `copy` the time from there to the complete copy on the next host, both as GB/s; with one
host there is no copy. `restore` reads the state in the next attempt, on the same host. `step` is the time of a step of 0.2 s of arithmetic
with a save in each, over that without.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from local_hosts import local_hosts

from monarch.spmd import RestartPolicy, run

PROGRAM = """
import hashlib, json, os, signal, sys, time
import numpy
from monarch.spmd import Snapshots

mib, saves, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
rank, count = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
snapshots = Snapshots()
now = time.perf_counter
if count == 1:
    begin = now()
    step, state = snapshots.restore()
    total = int(state["data"][::4096].sum())
    if rank == 0:
        with open(path, "a") as file:
            print(json.dumps({"restore": now() - begin}), file=file)
    raise SystemExit
data = numpy.zeros(mib << 20, numpy.uint8)
data[::4096] = 1


def work():
    block, digest = bytes(1 << 20), hashlib.sha256()
    for _ in range(STEPS):
        digest.update(block)


STEPS, begin = 50, now()
work()
STEPS = max(1, int(STEPS * 0.2 / (now() - begin)))
for step in range(saves):
    begin = now()
    future = snapshots.save(step, {"data": data})
    packed = now()
    future.get()
    found = {"pack": packed - begin, "copy": now() - packed}
    begin = now()
    work()
    found["without"] = now() - begin
    begin = now()
    if step:
        future = snapshots.save(saves + step, {"data": data})
        work()
        found["with"] = now() - begin
        future.get()
    if rank == 0:
        with open(path, "a") as file:
            print(json.dumps(found), file=file)
# The rank that measures ends the attempt.
if rank:
    signal.pause()
sys.exit(1)
"""


def measure(hosts: Any, mib: int, saves: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        program, notes = Path(folder, "program.py"), Path(folder, "notes")
        program.write_text(PROGRAM)
        policy = RestartPolicy(max_restarts=1, backoff=(0.0, 0.0))
        run(hosts, [str(program), str(mib), str(saves), str(notes)], policy=policy).result.get()
        rows: list[dict[str, float]] = [json.loads(line) for line in notes.read_text().splitlines()]
    size = mib * (1 << 20) / 1e9

    def median(name: str, skip: int) -> float:
        return statistics.median([row[name] for row in rows if name in row][skip:])

    # The first saves get memory that is new to the kernel, which takes it longer.
    return {
        "pack GB/s": size / median("pack", 4),
        "copy GB/s": size / median("copy", 4),
        "restore GB/s": size / median("restore", 0),
        "step, ratio": median("with", 3) / median("without", 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--saves", type=int, default=10)
    parser.add_argument("--hosts", default="1,2")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found: dict[str, dict[str, float]] = {}
    for count in map(int, options.hosts.split(",")):
        with local_hosts(count) as hosts:
            found[f"{count} {'host' if count == 1 else 'hosts'}"] = measure(hosts, options.mib, options.saves)
    if options.json:
        print(json.dumps(found, indent=1))
        return
    for name, row in found.items():
        print(f"{name:10}", ", ".join(f"{key} {value:.2f}" for key, value in row.items()))


if __name__ == "__main__":
    main()
