"""The pause of a run when a rank is killed: from SIGKILL to the end of the next step.

    python bench/spmd_recovery.py [--mib 256] [--runs 5] [--hosts 1,3,netns,slurm] [--torchrun PATH/TO/torchrun] [--json]

Each rank has a state of `--mib` MiB and saves it after each step, into a file of its own in the directory of the run, or as a snapshot.
Rank 1 kills itself at a step; the time ends when all ranks have done the first step of the next attempt. `--hosts 3` takes three workers of
this machine, with one rank each; one host has two ranks. `netns` is three hosts in network namespaces of their own, `slurm` a real cluster
of three nodes (tools/slurm); both need root. Seconds: median, least and most. torchrun restarts with the file.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

from requirement import namespaces, require, slurm

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from local_hosts import local_hosts

from monarch.actor import attach_to_workers
from monarch.job import SlurmJob
from monarch.spmd import RestartPolicy, run
from tools.netns.cluster import Cluster, Worker
from tools.slurm.cluster import SlurmCluster

PROGRAM = """
import os, signal, sys, time
import numpy

mib, way, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
rank, count = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
path = f"{folder}/state.{rank}"
if way == "snapshot":
    from monarch.spmd import Snapshots

    snapshots = Snapshots()
step, data = 0, numpy.zeros(mib << 20, numpy.uint8)
if count and way == "snapshot":
    step, state = snapshots.restore()
    data = state["data"]
elif count:
    data = numpy.fromfile(path, numpy.uint8)
    step = int(data[0])
for step in range(step + 1, step + 4):
    data[0] = step
    data += 1
    if count:
        with open(f"{folder}/done.{rank}", "w") as file:
            file.write(str(time.time()))
        break
    data[0] = step
    if way == "snapshot":
        snapshots.save(step, {"data": data}).get()
    else:
        data.tofile(path + ".draft")
        os.replace(path + ".draft", path)
if count == 0:
    open(f"{folder}/saved.{rank}", "w").close()
    while not all(os.path.exists(f"{folder}/saved.{other}") for other in range(int(os.environ["WORLD_SIZE"]))):
        time.sleep(0.01)  # sleeps: between two looks, as ranks have no other way to meet without torch
    if rank == 1:
        with open(f"{folder}/killed", "w") as file:
            file.write(str(time.time()))
        os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()
"""


@contextlib.contextmanager
def hosts_of(kind: str) -> Generator[Any]:
    """The hosts: 1 is this host; more are workers of this machine, or nodes of SLURM."""
    if kind == "slurm":
        with tempfile.TemporaryDirectory() as folder, SlurmCluster(Path(folder, "slurm"), 3) as cluster:
            os.environ.update(cluster.env)
            job = SlurmJob({"hosts": 3}, python_exe=sys.executable, job_dir=folder)
            try:
                yield job.state(cached_path=None).hosts
            finally:
                job.kill()
        return
    if "/" in kind or ":" in kind:
        yield attach_to_workers(workers=kind.split(), secret=os.environ["TEST_SECRET"])
        return
    with local_hosts(int(kind)) as hosts:
        yield hosts


def in_namespaces(mib: int, runs: int) -> dict[str, dict[str, float]]:
    """This benchmark on a host of its own, with three others that have workers."""
    with tempfile.TemporaryDirectory() as folder, Cluster(3, Path(folder), "") as cluster:
        cluster.workers = [Worker(host, cluster.env, cluster.secret) for host in cluster.hosts]
        addresses = " ".join(worker.address for worker in cluster.workers)
        argv = [sys.executable, __file__, "--hosts", addresses, "--mib", str(mib), "--runs", str(runs), "--json"]
        done = cluster.client_host.run(*argv, env=cluster.env, stdout=subprocess.PIPE)
        rows: dict[str, dict[str, float]] = json.loads(done.stdout)
        return {f"3 network namespaces, {name.rpartition(', ')[2]}": row for name, row in rows.items()}


def measured(launch: Callable[[str, str], None], way: str, runs: int) -> dict[str, float]:
    found: list[float] = []
    for _ in range(runs + 1):
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder, "program.py")
            program.write_text(PROGRAM)
            launch(str(program), folder)
            ends = [float(path.read_text()) for path in Path(folder).glob("done.*")]
            found.append(max(ends) - float(Path(folder, "killed").read_text()))
    del found[0]  # files of the interpreter are read for the first time
    return {"median": statistics.median(found), "least": min(found), "most": max(found)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--hosts", default="1,3")
    parser.add_argument("--torchrun")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    kinds = options.hosts.split(",")
    require(*([namespaces()] if "netns" in kinds else []), *([slurm()] if "slurm" in kinds else []))
    policy = RestartPolicy(max_restarts=1, backoff=(0.0, 0.0))
    found: dict[str, dict[str, float]] = {}
    for kind in kinds:
        if kind == "netns":
            found.update(in_namespaces(options.mib, options.runs))
            continue
        with hosts_of(kind) as hosts:
            for way in ("snapshot", "file"):

                def by_run(program: str, folder: str, way: str = way, hosts: Any = hosts, ranks: int = 2 if kind == "1" else 1) -> None:
                    command = ["torchrun", f"--nproc-per-node={ranks}", program, str(options.mib), way, folder]
                    run(hosts, command, policy=policy).result.get()

                name = {"1": "1 host", "slurm": "3 nodes of SLURM"}.get(kind, f"{kind} hosts")
                found[f"{name}, {way}"] = measured(by_run, way, options.runs)
    if options.torchrun:

        def by_torchrun(program: str, folder: str) -> None:
            words = ["--standalone", "--nproc-per-node=2", "--max-restarts=1", program, str(options.mib), "file", folder]
            subprocess.run([options.torchrun, *words], check=True, stderr=subprocess.DEVNULL)

        found["1 host, torchrun with a file"] = measured(by_torchrun, "file", options.runs)
    if options.json:
        print(json.dumps(found, indent=1))
        return
    for name, row in found.items():
        print(f"{name:30} {row['median']:.3f} s  ({row['least']:.3f} to {row['most']:.3f})")


if __name__ == "__main__":
    main()
