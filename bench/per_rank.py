"""A call with a value for each rank, beside a call with a common argument, a loop of `call_one`, a memcpy, and other systems.

    python bench/per_rank.py [--procs 64] [--mib 16] [--rounds 7] [--reference PYTHON] [--ray PYTHON] [PART...]

Needs two times `--procs` x `--mib` of memory, once of it in /dev/shm. `--reference` is an interpreter with torchmonarch 0.7.0 and NumPy
(`bench/make_venvs.sh`), `--ray` one with Ray and NumPy. Neither has such a call, so both send the values in a loop of calls, all before the
first answer is awaited.

| part | what |
|---|---|
| large | a NumPy array of `--mib` MiB for each proc; the ratio is to one memcpy of all arrays, into memory that was written before |
| small | an int for each proc; the ratio is to the same call with one common int |

The cases of a part alternate in each round, and a ratio is that of one round. A line has the median time in ms, and the median ratio with
its quartiles.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from requirement import Requirement, require

from monarch.actor import Actor, endpoint, per_rank, this_host

PARTS = ("large", "small")
MIB = 1 << 20
PEERS = Path(__file__).resolve().parent / "peers" / "rank_values.py"
# Small calls take well below a millisecond each.
SMALL_CALLS = 50


class Taker(Actor):
    @endpoint
    def take(self, x: Any) -> None:
        pass


def once(action: Callable[[], object], calls: int) -> float:
    """The milliseconds of one call."""
    start = time.perf_counter()
    for _ in range(calls):
        action()
    return (time.perf_counter() - start) / calls * 1e3


def compare(part: str, cases: dict[str, Callable[[], object]], base: str, rounds: int, calls: int) -> None:
    times: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(2):
        for action in cases.values():
            action()
    for _ in range(rounds):
        for name, action in cases.items():
            times[name].append(once(action, calls))
    for name, found in times.items():
        ratios = [a / b for a, b in zip(found, times[base], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(f"{part:6} {name:32} {statistics.median(found):9.2f} ms   ratio {middle:6.3f} ({low:.3f} to {high:.3f})", flush=True)


def large(procs: int, mib: int, rounds: int) -> None:
    values = [np.full(mib * MIB, rank % 256, np.uint8) for rank in range(procs)]
    copies = [np.zeros_like(x) for x in values]
    with this_host().spawn_procs({"gpus": procs}) as mesh:
        takers = mesh.spawn("takers", Taker)
        each = [takers.slice(gpus=rank) for rank in range(procs)]
        cases: dict[str, Callable[[], object]] = {
            "memcpy": lambda: [np.copyto(copy, x) for copy, x in zip(copies, values, strict=True)],
            "per_rank": lambda: takers.take.call(per_rank(values)).get(),
            "loop of call_one": lambda: [f.get() for f in [e.take.call_one(x) for e, x in zip(each, values, strict=True)]],
        }
        compare("large", cases, "memcpy", rounds, 1)


def small(procs: int, rounds: int) -> None:
    values = list(range(procs))
    with this_host().spawn_procs({"gpus": procs}) as mesh:
        takers = mesh.spawn("takers", Taker)
        each = [takers.slice(gpus=rank) for rank in range(procs)]
        cases: dict[str, Callable[[], object]] = {
            "common argument": lambda: takers.take.call(1).get(),
            "per_rank": lambda: takers.take.call(per_rank(values)).get(),
            "loop of call_one": lambda: [f.get() for f in [e.take.call_one(x) for e, x in zip(each, values, strict=True)]],
        }
        compare("small", cases, "common argument", rounds, SMALL_CALLS)


def peer(name: str, python: str, options: Any, parts: list[str]) -> None:
    command = [python, str(PEERS), name, str(options.procs), str(options.mib), str(options.rounds), *parts]
    for line in subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines():
        if line.startswith("{"):
            found = json.loads(line)
            print(f"{found['part']:6} {name + ', loop of calls':32} {found['median_ms']:9.2f} ms", flush=True)


def interpreter(python: str, imports: str, remedy: str) -> Requirement:
    """An interpreter with these modules."""
    works = subprocess.run([python, "-c", f"import {imports}"], capture_output=True, check=False).returncode == 0
    return Requirement("" if works else f"the Python modules {imports} in {python}", remedy)


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench/per_rank.py", description="Calls with a value for each rank.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--procs", type=int, default=64)
    parser.add_argument("--mib", type=int, default=16, help="of each large value")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--reference", metavar="PYTHON", help="with torchmonarch 0.7.0 and NumPy")
    parser.add_argument("--ray", metavar="PYTHON", help="with Ray and NumPy")
    options: Any = parser.parse_intermixed_args()
    parts = options.parts or list(PARTS)
    for part in parts:
        if part not in PARTS:
            parser.error(f"{part} is no part: {', '.join(PARTS)}")
    peers = {"torchmonarch": options.reference, "ray": options.ray}
    modules = {"torchmonarch": "monarch.actor, numpy", "ray": "ray, numpy"}
    remedies = {"torchmonarch": "bash bench/make_venvs.sh", "ray": "python -m venv DIR; DIR/bin/pip install ray numpy"}
    require(*(interpreter(python, modules[name], remedies[name]) for name, python in peers.items() if python))
    if "large" in parts:
        large(options.procs, options.mib, options.rounds)
    if "small" in parts:
        small(options.procs, options.rounds)
    for name, python in peers.items():
        if python:
            peer(name, python, options, parts)


if __name__ == "__main__":
    sys.exit(main())
