"""The time until a host that is cut off counts as lost, and the absence of false alarms for other hosts.

    python bench/host_loss.py [--cuts 200] [--hosts 4]
    python bench/host_loss.py --quiet-hours 2 [--hogs 4]

Hosts are network namespaces with `monarch worker` each, the script runs on another one (`tools/netns`; needs root). The time is from the
moment at which the bridge drops all traffic of a host until a waiting call raises, and until the `__supervise__` of the owner
ran there; milliseconds, on the one clock of the machine. All hosts but one are cut off, one after the other, at random times; then the
round begins again.

With `--quiet-hours` nothing is cut off: `--hogs` processes keep all processors busy, and false losses are counted. Prints
a JSON line; exits 1 after a false alarm, or a wrong report of a loss.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import secrets
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from requirement import namespaces, require

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.netns import Host, Network, Process

PORT = 22222
MONARCH = "from monarch.extension.cli import main; main()"
PROCS = 2
# Seconds between two checks in a quiet time.
LOOK_S = 1.0

CLIENT = """
import asyncio, os, sys, threading, time
import monarch.actor
from monarch.actor import Actor, Channel, SupervisionError, attach_to_workers, endpoint, this_host

class Worker(Actor):
    @endpoint
    def ping(self):
        return os.getpid()

class Waiter(Actor):
    @endpoint
    async def wait(self):
        await asyncio.Event().wait()

class Owner(Actor):
    def __init__(self, port):
        self.port = port
    @endpoint
    def own(self, hosts, procs):
        self.procs = hosts.spawn_procs({"procs": procs})
        return self.procs.spawn("worker", Worker), self.procs.spawn("waiter", Waiter)
    def __supervise__(self, failure):
        self.port.send(("supervise", time.monotonic_ns(), failure.host, failure.crashed_ranks[0], str(failure.reason.kind)))
        return True

lock = threading.Lock()
def say(*words):
    with lock:
        print(*words, flush=True)

def wait(call, n):
    try:
        call.get()
    except SupervisionError as e:
        say("raised", time.monotonic_ns(), n, e.failure.reason.kind)

def listen(receiver):
    while True:
        say(*receiver.recv().get())

procs, *addresses = sys.argv[1:]
monarch.actor.unhandled_fault_hook = lambda failure: say("root", time.monotonic_ns(), failure.host)
port, receiver = Channel.open()
threading.Thread(target=listen, args=(receiver,), daemon=True).start()
hosts = attach_to_workers(workers=addresses, secret=os.environ["BENCH_SECRET"])
owner = this_host().spawn_procs().spawn("owner", Owner, port)
workers, waiters = owner.own.call_one(hosts, int(procs)).get()
workers.ping.call().get()
for n in range(len(addresses)):
    threading.Thread(target=wait, args=(waiters.slice(hosts=n).wait.call(), n), daemon=True).start()
say("up")
for line in sys.stdin:
    alive = [int(n) for n in line.split()]
    for n in alive:
        workers.slice(hosts=n).ping.call().get()
    say("pinged")
os._exit(0)
"""


class Job:
    """One client, and its output lines."""

    def __init__(self, client: Host, workers: list[str], env: dict[str, str], script: Path) -> None:
        argv = (sys.executable, str(script), str(PROCS), *workers)
        self.process: Process = client.popen(*argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
        self.until(up=1)

    def line(self) -> list[str]:
        assert self.process.stdout is not None
        words = self.process.stdout.readline().split()
        if not words:
            raise SystemExit(f"the client ended with {self.process.wait()}")
        return words

    def until(self, **wanted: int) -> dict[str, list[str]]:
        """Lines with these first words, in the given numbers, the first of each; any other line is a false alarm."""
        found: dict[str, list[str]] = {}
        while wanted:
            words = self.line()
            if words[0] not in wanted:
                raise SystemExit(f"said out of turn: {' '.join(words)}")
            found.setdefault(words[0], words)
            wanted[words[0]] -= 1
            if not wanted[words[0]]:
                del wanted[words[0]]
        return found

    def send(self, *words: object) -> None:
        assert self.process.stdin is not None
        print(*words, file=self.process.stdin, flush=True)

    def end(self) -> None:
        self.process.communicate()


def start_workers(hosts: list[Host], env: dict[str, str]) -> tuple[list[Process], list[str]]:
    workers: list[Process] = []
    addresses: list[str] = []
    for host in hosts:
        argv = ("-c", MONARCH, "worker", "--listen", f"tcp://{host.name}:{PORT}", "--secret-file", env["BENCH_SECRET"])
        worker = host.popen(sys.executable, *argv, stdout=subprocess.PIPE, env=env)
        assert worker.stdout is not None
        addresses.append(worker.stdout.readline().split()[-1])
        workers.append(worker)
    return workers, addresses


def end_workers(hosts: list[Host], workers: list[Process]) -> None:
    for host in hosts:
        # With all their child processes.
        host.run("sh", "-c", "kill -9 -1", check=False)
    for worker in workers:
        worker.communicate()


def cuts(network: Network, env: dict[str, str], script: Path, count: int) -> dict[str, Any]:
    client, *hosts = network.hosts
    moments = random.Random(0)
    raised: list[float] = []
    told: list[float] = []
    wrong = 0
    while len(raised) < count:
        # The next round has new workers: those of the last round may still clean up.
        workers, addresses = start_workers(hosts, env)
        job = Job(client, addresses, env, script)
        for n, host in enumerate(hosts[:-1]):
            time.sleep(moments.uniform(0.3, 0.9))
            start = time.monotonic_ns()
            host.cut()
            # Each proc of the host has two actors; the first notice counts.
            said = job.until(raised=1, supervise=2 * PROCS)
            raised.append((int(said["raised"][1]) - start) / 1e6)
            told.append((int(said["supervise"][1]) - start) / 1e6)
            wrong += said["raised"][2:] != [str(n), "host_lost"] or said["supervise"][2] != host.name
        job.end()
        for host in hosts:
            host.heal()
        end_workers(hosts, workers)
    return {"bench": "host_loss", "n": len(raised), "call_raises_ms": summary(raised), "supervise_ms": summary(told), "wrong": wrong}


def quiet(network: Network, env: dict[str, str], script: Path, hours: float, hogs: int) -> dict[str, Any]:
    client, *hosts = network.hosts
    workers, addresses = start_workers(hosts, env)
    job = Job(client, addresses, env, script)
    busy = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(hogs)]
    alarms, looks = 0, 0
    end = time.monotonic() + 3600 * hours
    try:
        while time.monotonic() < end:
            time.sleep(LOOK_S)
            job.send(*range(len(hosts)))
            looks += 1
            while (words := job.line())[0] != "pinged":
                alarms += 1
                print(*words, file=sys.stderr, flush=True)
    finally:
        for hog in busy:
            hog.kill()
            hog.wait()
    job.end()
    end_workers(hosts, workers)
    return {"bench": "host_loss/quiet", "hours": hours, "hogs": hogs, "hosts": len(hosts), "calls": looks * len(hosts), "wrong": alarms}


def summary(times: list[float]) -> dict[str, float]:
    ordered = sorted(times)
    at = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    return {name: round(ordered[min(len(ordered) - 1, int(q * len(ordered)))], 1) for name, q in at.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cuts", type=int, default=200)
    parser.add_argument("--hosts", type=int, default=4, help="besides the client's")
    parser.add_argument("--quiet-hours", type=float, help="cut nothing, for so long")
    parser.add_argument("--hogs", type=int, default=4, help="processes that keep processors busy in a quiet time")
    options = parser.parse_args()
    require(namespaces())
    with tempfile.TemporaryDirectory() as made, Network(options.hosts + 1) as network:
        secret, script = Path(made) / "secret", Path(made) / "client.py"
        secret.touch(0o600)
        secret.write_bytes(secrets.token_bytes(32))
        script.write_text(CLIENT)
        env = {**os.environ, "BENCH_SECRET": str(secret)}
        if options.quiet_hours is not None:
            found = quiet(network, env, script, options.quiet_hours, options.hogs)
        else:
            found = cuts(network, env, script, options.cuts)
    print(json.dumps(found), flush=True)
    return 1 if found["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
