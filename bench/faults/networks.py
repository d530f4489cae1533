"""Programs of three hosts in network namespaces, whose links are slow, lossy or cut. They need root.

The program itself is outside of the hosts. It starts the client of the job on the first host, and makes the fault when the job works.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import monarch.actor
from bench.faults.program import Fault, ready, until_closed
from monarch.actor import Actor, attach_to_workers, endpoint
from tools.netns.cluster import Cluster, Worker
from tools.netns.host import Host

_HOSTS = 3
_NEEDS = "/proc/1/ns"
_BLOCK = 1 << 20
# The library that gives processes another clock.
_FAKE_CLOCK = f"/usr/lib/{platform.machine()}-linux-gnu/faketime"


class Trainer(Actor):
    """Takes batches from the client."""

    @endpoint
    def step(self, batch: bytes) -> int:
        return len(batch)


def client(size: int, *workers: str) -> None:
    """The script of the job: it sends a batch of this size to all ranks again and again."""
    monarch.actor.unhandled_fault_hook = lambda failure: None
    hosts = attach_to_workers(workers=list(workers), secret=os.environ["TEST_SECRET"])
    trainers = hosts.spawn_procs(name="workers").spawn("trainer", Trainer)
    batch = os.urandom(size)
    trainers.step.call(batch).get()
    print("up", os.getpid(), flush=True)
    until_closed()
    while trainers.step.call(batch).exception() is None:
        pass
    # The script goes on after a failure, as one that heals its job.
    threading.Event().wait()


def _job(size: int, break_it: Callable[[Cluster], object], settings: dict[str, str] | None = None) -> None:
    job([__name__, str(size)], lambda cluster, _: break_it(cluster), settings)


def job(module: Sequence[str], break_it: Callable[[Cluster, list[int]], object], settings: dict[str, str] | None = None) -> None:
    """Runs a module as the client, with these words and the addresses of the workers; makes the fault, and lives until stdin is closed.

    The client prints the word `up`, its pid, and the pids that `break_it` gets.
    """
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    root = str(Path(__file__).resolve().parents[2])
    paths = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH", ""))))
    with Cluster(_HOSTS, folder, "", MONARCH_HOME=str(folder / "home"), PYTHONPATH=paths) as cluster:
        for number, host in enumerate(cluster.hosts):
            own = settings if number == 1 and settings else {}
            cluster.workers.append(Worker(host, {**cluster.env, **own}, cluster.secret))
        script = [sys.executable, "-m", *module, *(worker.address for worker in cluster.workers)]
        running = cluster.client_host.popen(*script, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=cluster.env)
        assert running.stdout is not None
        pid, *others = (int(word) for word in running.stdout.readline().split()[1:])
        break_it(cluster, others)
        ready(pid, tuple(cluster.client_host.namespace.enter()))
        sys.stdin.read()
        running.kill()
        running.communicate()


def _bad(cluster: Cluster) -> Host:
    return cluster.hosts[1]


def _slow(cluster: Cluster) -> None:
    """Both ends of the link have room for 4 Mbit/s."""
    shaping = ("root", "tbf", "rate", "4mbit", "burst", "32k", "latency", "400ms")
    _bad(cluster).namespace.configure("tc", "qdisc", "add", "dev", "eth0", *shaping)
    cluster.network.switch.configure("tc", "qdisc", "add", "dev", _bad(cluster).name, *shaping)


def _lossy(cluster: Cluster) -> None:
    """A tenth of all frames of a host are lost, both ways."""
    name = _bad(cluster).name
    rules = [f"add rule bridge loss frames {side} {name} numgen random mod 10 < 1 drop" for side in ("iifname", "oifname")]
    chain = ("add table bridge loss", "add chain bridge loss frames { type filter hook forward priority 0 ; }")
    cluster.network.switch.configure("nft", "; ".join((*chain, *rules)))


def _partition(cluster: Cluster) -> None:
    """The client and the first host no longer reach the others."""
    here = (cluster.client_host, cluster.hosts[0])
    for host in here:
        for other in cluster.hosts[1:]:
            cluster.network.cut_link(host, other)


def _clock_jumps() -> None:
    """The clock of a host jumps by an hour while the job runs; the clock of the machine stays as it is."""
    offset = Path(tempfile.mkdtemp(prefix="faults-")) / "offset"
    offset.write_text("+0")
    [library] = Path(_FAKE_CLOCK).glob("libfaketimeMT.so.1")
    settings = {"LD_PRELOAD": str(library), "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    at = {"FAKETIME_TIMESTAMP_FILE": str(offset), "FAKETIME_NO_CACHE": "1"}
    _job(1, lambda _: offset.write_text("+3600"), {**settings, **at})


FAULTS = (
    Fault(
        "slow_link",
        partial(_job, 4 * _BLOCK, _slow),
        r"the link from host h\d to host h3 is slow|the link from host h3 .* is slow",
        2.0,
        _NEEDS,
    ),
    Fault("lossy_link", partial(_job, _BLOCK // 4, _lossy), r"the link from host (h\d to host h3|h3 to host h\d) loses data", 3.0, _NEEDS),
    Fault("silent_host", partial(_job, 1, lambda cluster: _bad(cluster).cut()), r"host h3 was lost: silent for", 5.0, _NEEDS),
    Fault("one_way_cut", partial(_job, 1, lambda cluster: _bad(cluster).cut(outbound=False)), r"host h3 was lost: silent for", 5.0, _NEEDS),
    Fault("partition", partial(_job, 1, _partition), r"2 hosts were lost: h3, h4: silent for", 5.0, _NEEDS),
    Fault("clock_jumps", _clock_jumps, r"the clock of host h3 is 60 min ahead of the clocks of the other \d procs", 1.0, _FAKE_CLOCK),
)

if __name__ == "__main__":
    client(int(sys.argv[1]), *sys.argv[2:])
