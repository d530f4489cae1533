"""Calls while a listener is flooded, beside calls without a flood in the same run.

    python bench/floods.py [--seconds 5] [--rounds 3] [--user other|same] [--listener NAME]...

A client with two procs and a worker (TLS, loopback) calls one actor of each in a loop. One listener after the other is flooded: the control
sockets of client and worker, the port of the worker, the port of the debugger, and the memory socket of a proc if monarch-rdma is
installed; by another user if root runs this. Each round measures without a flood and with each kind of flood in turn. The flood takes
processor time of its own: `spin` is an equal number of processes that flood nothing and only compute, for comparison on a
machine with few cores. Prints one JSON line for each listener and kind: medians over the rounds of p50 and p99 in microseconds, and the
ratio of p99 to that without a flood, and to `spin`. Goal: within 2.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "packages" / "monarch-core" / "tests" / "process")]

from listener_flood import KINDS, STRANGER, ListenerFlood, is_bulk, listening_sockets  # noqa: E402
from worker_processes import Workers  # noqa: E402

import monarch.actor  # noqa: E402
from monarch.actor import Actor, SupervisionError, attach_to_workers, debug_controller, endpoint, this_host  # noqa: E402

# Processes of one flood.
FLOODERS = 2
SPIN = "import sys, select\nwhile not select.select([sys.stdin], [], [], 0)[0]:\n    sum(range(1000))"


class Echo(Actor):
    @endpoint
    def echo(self, x: int) -> int:
        return x

    @endpoint
    def share(self) -> int:
        """Opens the memory socket of this process."""
        from monarch.rdma import RDMABuffer  # pyright: ignore

        self.memory = bytearray(1000)
        self.buffer = RDMABuffer(memoryview(self.memory))
        import pickle

        pickle.dumps(self.buffer)
        return os.getpid()


@contextlib.contextmanager
def spin(_: str) -> Iterator[None]:
    made = [subprocess.Popen([sys.executable, "-IS", "-c", SPIN], stdin=subprocess.PIPE) for _ in range(FLOODERS)]
    try:
        yield
    finally:
        for process in made:
            process.communicate()


def flood(kind: str, uid: int | None) -> Callable[[str], contextlib.AbstractContextManager[None]]:
    @contextlib.contextmanager
    def flooded(address: str) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for _ in range(FLOODERS):
                stack.enter_context(ListenerFlood(kind, address, uid))
            yield

    return flooded


def measure(targets: dict[str, Any], seconds: float) -> dict[str, list[float]]:
    """Microseconds of each call, by the target."""
    found: dict[str, list[float]] = {name: [] for name in targets}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for name, actor in targets.items():
            start = time.perf_counter()
            actor.echo.call_one(1).get()
            found[name].append(1e6 * (time.perf_counter() - start))
    return found


def quantile(values: list[float], q: float) -> float:
    return sorted(values)[min(len(values) - 1, int(q * len(values)))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--user", choices=("other", "same"), default="other" if os.geteuid() == 0 else "same")
    parser.add_argument("--listener", action="append", help="client, worker, port, debugger, memory (default: all)")
    options = parser.parse_args()
    monarch.actor.unhandled_fault_hook = lambda failure: None
    uid = STRANGER if options.user == "other" else None
    with Workers(1, "tls") as workers:
        hosts = attach_to_workers(workers=workers.addresses, **workers.trust())
        procs = this_host().spawn_procs({"procs": 2})
        here, there = procs.spawn("here", Echo).slice(procs=0), hosts.spawn_procs().spawn("there", Echo)
        targets = {"local": here, "remote": there}
        measure(targets, 0.5)

        def sockets(pid: int, *, bulk: bool = False, tcp: bool = False) -> list[str]:
            return [a for a in listening_sockets(pid) if a.startswith("tcp:") == tcp and is_bulk(a) == bulk]

        worker = workers.processes[0].pid
        listeners = {"client": sockets(os.getpid()), "worker": sockets(worker), "port": sockets(worker, tcp=True)}
        os.environ["MONARCH_DEBUG_SERVER_PORT"] = "0"
        debug_controller().serve.call_one().get()
        listeners["debugger"] = sockets(os.getpid(), tcp=True)
        with contextlib.suppress(Exception):  # without monarch-rdma there is none
            listeners["memory"] = sockets(here.share.call_one().get(), bulk=True)
        kinds = {"none": lambda _: contextlib.nullcontext(), "spin": spin, **{kind: flood(kind, uid) for kind in KINDS}}
        for name, addresses in listeners.items():
            for address in addresses if name in (options.listener or listeners) else ():
                found: dict[tuple[str, str], list[tuple[float, float]]] = {}
                for _ in range(options.rounds):
                    for kind, flooded in kinds.items():
                        try:
                            with flooded(address):
                                measured = measure(targets, options.seconds)
                        except SupervisionError as e:
                            print(json.dumps({"bench": f"flood/{name}/{kind}", "lost": str(e).splitlines()[0]}), flush=True)
                            return 1
                        for target, times in measured.items():
                            found.setdefault((kind, target), []).append((quantile(times, 0.5), quantile(times, 0.99)))
                report(name, address, options.user, found)
        hosts.shutdown().get()
    return 0


def report(listener: str, address: str, user: str, found: dict[tuple[str, str], list[tuple[float, float]]]) -> None:
    figures = {key: [statistics.median(column) for column in zip(*values, strict=True)] for key, values in found.items()}
    for (kind, target), (p50, p99) in figures.items():
        line: dict[str, Any] = {
            "bench": f"flood/{listener}/{kind}",
            "calls": target,
            "user": user,
            "p50": round(p50, 1),
            "p99": round(p99, 1),
        }
        if kind not in ("none", "spin"):
            line |= {f"p99_to_{base}": round(p99 / figures[base, target][1], 2) for base in ("none", "spin")}
        print(json.dumps({**line, "address": address.partition(":")[0]}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
