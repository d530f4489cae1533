"""Many short-lived processes: the memory that the remaining processes keep for each ended one.

    python bench/churn.py [--procs 10000] [--width 20] [--kill 0.5] [--hosts 0] [--jobs 1] [--seed 0]

Meshes of `--width` processes are spawned one after another, on this host or on `--hosts` workers in turn. The client and an actor of a
remaining process call their actors. Then the mesh is stopped, or, with the probability `--kill`, all its processes are
killed. With `--jobs`, that many clients do this one after another, on the same workers.

Prints one JSON line: the proportional set size (PSS, KiB) of each remaining process after a quarter of the processes and after all of
them, and its growth in bytes per ended process in between.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent.parent / "packages" / "monarch-core" / "tests" / "process"))

from worker_processes import Workers, children

import monarch.actor
from monarch.actor import Actor, attach_to_workers, endpoint, this_host


class Echo(Actor):
    @endpoint
    def pid(self) -> int:
        return os.getpid()


class Caller(Actor):
    @endpoint
    def call(self, others: Any) -> int:
        return len(others.pid.call().get())

    @endpoint
    def pid(self) -> int:
        return os.getpid()


def pss_kib(pid: int) -> int:
    """The proportional set size: shared pages count by their share."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def settled(processes: dict[str, int]) -> dict[str, int]:
    """The sizes once they no longer change, when unused memory has been freed."""
    sizes = {name: pss_kib(pid) for name, pid in processes.items()}
    while True:
        time.sleep(1.5)  # sleeps: longer than what is kept for the next use
        last, sizes = sizes, {name: pss_kib(pid) for name, pid in processes.items()}
        if all(abs(sizes[name] - last[name]) <= 64 for name in sizes):
            return sizes


class Churn:
    def __init__(self, options: argparse.Namespace, addresses: list[str], trust: dict[str, Any], workers: dict[str, int]) -> None:
        self.random = random.Random(options.seed)
        self.options = options
        self.hosts = attach_to_workers(workers=addresses, **trust) if addresses else this_host()
        if addresses:
            self.hosts.initialized.get()
        self.count = len(addresses)
        self.turn = 0
        caller = self.mesh(1)
        self.caller = caller.spawn("caller", Caller)
        zygotes = {f"zygote{i or ''}": pid for i, pid in enumerate(children(os.getpid()))}
        self.processes = {"client": os.getpid(), "proc": next(iter(self.caller.pid.call().get().values())), **zygotes, **workers}

    def mesh(self, width: int) -> Any:
        self.turn += 1
        on = self.hosts.slice(hosts=self.turn % self.count) if self.count else self.hosts
        return on.spawn_procs(per_host={"procs": width})

    def run(self, procs: int) -> int:
        """Starts and ends meshes with at least `procs` processes; returns their number."""
        ended = 0
        while ended < procs:
            mesh = self.mesh(self.options.width)
            echo = mesh.spawn("echo", Echo)
            pids = list(echo.pid.call().get().values())
            assert self.caller.call.call_one(echo).get() == len(pids)
            if self.random.random() < self.options.kill:
                for pid in pids:
                    os.kill(pid, signal.SIGKILL)
            mesh.stop().get()
            ended += len(pids)
        return ended


def client(options: argparse.Namespace) -> dict[str, Any]:
    addresses, trust, workers = json.loads(options.client)
    monarch.actor.unhandled_fault_hook = lambda _: None
    churn = Churn(options, addresses, trust, workers)
    first = churn.run(options.procs // 4)
    before = settled(churn.processes)
    start = time.perf_counter()
    more = churn.run(options.procs - first)
    seconds = time.perf_counter() - start
    after = settled(churn.processes)
    grown = {name: round(1024 * (after[name] - before[name]) / more) for name in after}
    return {"procs": first + more, "procs_per_s": round(more / seconds), "before_kib": before, "after_kib": after, "bytes_per_proc": grown}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--procs", type=int, default=10_000)
    parser.add_argument("--width", type=int, default=20)
    parser.add_argument("--kill", type=float, default=0.5)
    parser.add_argument("--hosts", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--client", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client:
        print(json.dumps(client(options)))
        return 0
    with Workers(options.hosts, "tls") as workers:
        pids = {f"worker{i or ''}": process.pid for i, process in enumerate(workers.processes)}
        told = json.dumps([workers.addresses, workers.trust(), pids])
        argv = [sys.executable, __file__, *sys.argv[1:], "--client", told]
        results: list[dict[str, Any]] = []
        sizes: list[dict[str, int]] = []
        for _ in range(options.jobs):
            done = subprocess.run(argv, stdout=subprocess.PIPE, check=True)
            results.append(json.loads(done.stdout))
            if pids:
                sizes.append(settled(pids))
    said = {"bench": "churn", "width": options.width, "kill": options.kill, "hosts": options.hosts, **results[0]}
    if options.jobs > 1:
        said["workers_after_each_job_kib"] = sizes
    print(json.dumps(said))
    return 0


if __name__ == "__main__":
    sys.exit(main())
