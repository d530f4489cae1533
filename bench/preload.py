"""Starts of procs and of rank programs that have imported modules: with `preload`, without, and beside torchrun.

    python -m tools.with_torch python bench/preload.py [--modules torch] [--procs 64] [--ranks 8] [--runs 5] [--torchrun FILE]
                                                    [--ray PYTHON] [--json]

Numbers are medians of the runs in seconds, with the least and the most, and bytes. `cold` is the start of all procs on a host where nothing
was loaded, the imports included; `further` is that of one more proc. `run` is `monarch.spmd.run` of a program that imports the modules and,
with torch, does one all-reduce with gloo. `--ray` is an interpreter with Ray and the modules: actors that import them, started twice.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from monarch.actor import Actor, endpoint, this_host
from monarch.spmd import run

_PROGRAM = """
import {names}
if "torch" in {names!r}:
    import torch.distributed as dist
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()
"""


class Worker(Actor):
    @endpoint
    def own(self, modules: list[str]) -> int:
        """Imports the modules; the bytes that no other process shares."""
        for name in modules:
            __import__(name)
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Private_"))


def spread(found: list[float]) -> dict[str, float]:
    return {"median": statistics.median(found), "least": min(found), "most": max(found)}


def timed(action: Callable[[], object], runs: int) -> dict[str, float]:
    found: list[float] = []
    for _ in range(runs):
        begin = time.perf_counter()
        action()
        found.append(time.perf_counter() - begin)
    return spread(found)


def spawn(count: int, modules: list[str], preload: list[str]) -> tuple[float, int]:
    """Seconds until all procs have the modules, and the most memory of its own that one has."""
    begin = time.perf_counter()
    with this_host().spawn_procs({"procs": count}, preload=preload) as procs:
        sizes = procs.spawn("worker", Worker).own.call(modules).get().values()
        return time.perf_counter() - begin, max(sizes)


_RAY = """
import sys, time
import ray
ray.init(num_cpus=int(sys.argv[1]), include_dashboard=False, log_to_driver=False)
@ray.remote(num_cpus=0)
class Worker:
    def own(self, modules):
        for name in modules:
            __import__(name)
for _ in range(2):
    begin = time.perf_counter()
    workers = [Worker.remote() for _ in range(int(sys.argv[1]))]
    ray.get([worker.own.remote(sys.argv[2:]) for worker in workers])
    print("seconds", time.perf_counter() - begin, flush=True)
    for worker in workers:
        ray.kill(worker)
"""


def of_ray(python: str, count: int, modules: list[str]) -> list[float]:
    """Seconds until all actors of Ray have the modules: of the first start, and of another."""
    done = subprocess.run([python, "-c", _RAY, str(count), *modules], check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return [float(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("seconds ")]


def command(*words: str) -> None:
    subprocess.run(words, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modules", default="torch")
    parser.add_argument("--procs", type=int, default=64)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--torchrun")
    parser.add_argument("--ray", metavar="PYTHON", help="With Ray and the modules.")
    parser.add_argument("--without", action="store_true", help="Also start all procs without preload, each with its own import.")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    names: list[str] = options.modules.split(",")
    found: dict[str, dict[str, float]] = {}
    code = f"import {options.modules}"
    found["one import"] = timed(lambda: command(sys.executable, "-c", code), options.runs)
    spawn(1, [], [])
    cold: list[float] = []
    for number in range(options.runs):
        # Another environment is another interpreter.
        os.environ["PRELOAD_BENCH"] = str(number)
        cold.append(spawn(options.procs, names, names)[0])
    found[f"{options.procs} procs, cold"] = spread(cold)
    further = [spawn(1, names, names) for _ in range(options.runs)]
    found["one further proc"] = spread([seconds for seconds, _ in further])
    many = [spawn(options.procs, names, names) for _ in range(options.runs)]
    found[f"{options.procs} further procs, each"] = spread([seconds / options.procs for seconds, _ in many])
    found["own memory of a proc"] = spread([size for _, size in many])
    if options.without:
        plain = spawn(options.procs, names, [])
        found[f"{options.procs} procs without preload"] = spread([plain[0]])
        found["own memory without preload"] = spread([plain[1]])
    if options.ray:
        first, again = of_ray(options.ray, options.procs, names)
        found[f"{options.procs} actors of Ray, the first"] = spread([first])
        found[f"{options.procs} further actors of Ray"] = spread([again])
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "program.py")
        program.write_text(_PROGRAM.format(names=options.modules))
        launch = [f"--nproc-per-node={options.ranks}", str(program)]
        for title, preload in (("preload", names), ("no preload", [])):
            start = lambda preload=preload: run(this_host(), ["torchrun", *launch], preload=preload).result.get()  # noqa: E731
            start()
            found[f"run, {options.ranks} ranks, {title}"] = timed(start, options.runs)
        if options.torchrun:
            found[f"torchrun, {options.ranks} ranks"] = timed(lambda: command(options.torchrun, *launch), options.runs)
    if options.json:
        print(json.dumps(found, indent=1))
        return
    for title, numbers in found.items():
        print(f"{title:36} {numbers['median']:14.3f} ({numbers['least']:.3f} to {numbers['most']:.3f})")


if __name__ == "__main__":
    main()
