"""The costs of links and processors in a real run, for the simulation of `bench/scale.py --costs FILE`.

    python bench/link_costs.py [--out FILE] [--rounds 3] [--calls 3000]

Hosts are network namespaces on a bridge with a `monarch worker` each, the client is on one more (`tools/netns`; needs root). Prints the
medians over the rounds as JSON, in microseconds, named as in `rust/runtime/examples/scale/costs.rs`. There is no wire: costs of a wire
(`wire_byte`) keep their default, and `hop` is the kernel's part of one; `--hop 40` writes that of the goal instead.

| cost | source |
|---|---|
| `handle` | processor time of the proc for a small call, without the frames |
| `local_hop` | half of the rest of a call to a proc of the client's machine |
| `send`, `receive`, `local_send` | processor time of the agent that passes a call on, four frames; TLS adds its cost to two of them |
| `hop` | half of the additional time of a call to another host, less sending and receiving |
| `jitter` | half of the mean time by which such calls exceed the fastest tenth |
| `byte` | processor time of the agent for calls of 32 KiB, per byte |
| `handshake` | processor time of a worker for one more client: it joins, and two connections are opened |
| `notice` | from the SIGKILL of an agent until a call to its host fails |
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from requirement import namespaces, require

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

MONARCH = "from monarch.extension.cli import main; main()"
PORT = 22222
WORKERS = 3
SIZE = 32 << 10
# Clients that attach one after the other, for `handshake`.
CLIENTS = 8
TIMEOUT_S = 180


# ---- in the namespaces


def cpu(pid: int) -> float:
    """Processor time of all living threads of a process, in microseconds."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        try:
            total += int(Path(f"/proc/{pid}/task/{task}/schedstat").read_text().split()[0])
        except OSError:  # the thread has just ended
            continue
    return total / 1000


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])


def client(workers: list[str], trust: dict[str, Any], calls: int) -> dict[str, float]:
    """All measurements of one client with workers of one kind."""
    import monarch.actor
    from monarch.actor import Actor, SupervisionError, attach_to_workers, endpoint, this_host

    class Probe(Actor):
        @endpoint
        def echo(self, x: Any) -> int:
            return 1

        @endpoint
        def cpu(self, of_agent: bool) -> float:
            # A proc's parent is the zygote, whose parent is the agent.
            return cpu(parent(os.getppid()) if of_agent else os.getpid())

        @endpoint
        def kill_agent(self) -> float:
            now = time.time()
            os.kill(parent(os.getppid()), 9)
            return now

    monarch.actor.unhandled_fault_hook = lambda failure: None
    hosts = attach_to_workers(workers=workers, **trust)
    probes = hosts.spawn_procs().spawn("probe", Probe)
    probes.echo.call(0).get()
    there = probes.slice(hosts=0)
    here = this_host().spawn_procs().spawn("here", Probe)

    def timed(probe: Any, argument: Any, of_agent: bool) -> tuple[list[float], float]:
        """Each call's time, and the processor time of the agent or the proc for one."""
        for _ in range(calls // 10):
            probe.echo.call_one(argument).get()
        before = probe.cpu.call_one(of_agent).get()
        times: list[float] = []
        for _ in range(calls):
            start = time.perf_counter()
            probe.echo.call_one(argument).get()
            times.append((time.perf_counter() - start) * 1e6)
        return times, (probe.cpu.call_one(of_agent).get() - before) / calls

    local, proc = timed(here, 0, False)
    before = time.process_time()
    remote, agent = timed(there, 0, True)
    own = (time.process_time() - before) * 1e6 / (1.1 * calls)
    _, large = timed(there, os.urandom(SIZE), True)
    tenth = sorted(remote)[calls // 10]
    found = {
        "local": statistics.median(local),
        "proc": proc,
        "own": own,
        "remote": statistics.median(remote),
        "over_a_tenth": statistics.fmean(max(0.0, t - tenth) for t in remote),
        "agent": agent,
        "byte": (large - agent) / SIZE,
    }
    before = there.cpu.call_one(True).get()
    for _ in range(CLIENTS):
        subprocess.run([sys.executable, __file__, "--inside", json.dumps({"workers": workers[:1], "trust": trust, "calls": 0})], check=True)
    found["handshake"] = (there.cpu.call_one(True).get() - before) / CLIENTS
    lost = probes.slice(hosts=WORKERS - 1)
    waits = lost.echo.call_one(0)
    waits.get()
    killed = time.time()
    try:
        lost.kill_agent.call_one().get()
    except SupervisionError:
        found["notice"] = (time.time() - killed) * 1e6
    return found


def join_only(workers: list[str], trust: dict[str, Any]) -> None:
    from monarch.actor import attach_to_workers

    attach_to_workers(workers=workers, **trust).initialized.get()


# ---- outside


def run(kind: str, calls: int) -> dict[str, float]:
    """One client and its workers, of `tls` or `insecure`, in a network of their own."""
    from tools.netns import Network

    with Network(WORKERS + 1) as network, tempfile.TemporaryDirectory() as folder:
        first, *others = network.hosts
        secret = Path(folder, "secret")
        with open(os.open(secret, os.O_CREAT | os.O_WRONLY, 0o600), "w", encoding="utf-8") as f:
            f.write(secrets.token_hex(32))
        how = ["--secret-file", str(secret)] if kind == "tls" else ["--insecure"]
        env = {**os.environ, "PYTHONWARNINGS": "ignore"}
        workers = []
        for host in others:
            words = [sys.executable, "-c", MONARCH, "worker", "--listen", f"tcp://{host.address}:{PORT}", *how]
            workers.append(host.popen(*words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env))
        for worker in workers:
            # The worker prints this line when it listens.
            worker.stdout.readline()
        trust = {"secret": str(secret)} if kind == "tls" else {"insecure": True}
        what = {"workers": [f"tcp://{host.address}:{PORT}" for host in others], "trust": trust, "calls": calls}
        script = first.popen(sys.executable, __file__, "--inside", json.dumps(what), stdout=subprocess.PIPE, env=env)
        try:
            out, _ = script.communicate(timeout=TIMEOUT_S)
        finally:
            for host in network.hosts:
                # With all their child processes.
                host.run("sh", "-c", "kill -9 -1", check=False, stderr=subprocess.DEVNULL)
            for worker in workers:
                worker.communicate()
        return json.loads(out.splitlines()[-1])


def costs(tls: dict[str, float], plain: dict[str, float]) -> dict[str, float]:
    """The costs for the simulation, from the measurements with and without encryption."""
    frame = plain["agent"] / 4
    trunk = frame + max(0.0, tls["agent"] - plain["agent"]) / 2
    handle = max(0.0, tls["proc"] - 2 * frame)
    return {
        "hop": max(0.0, (tls["remote"] - tls["local"]) / 2 - 2 * trunk),
        "jitter": tls["over_a_tenth"] / 2,
        "send": trunk,
        "receive": trunk,
        "byte": max(0.0, tls["byte"]),
        "local_hop": max(0.0, (tls["local"] - handle) / 2),
        "local_send": frame,
        "handle": handle,
        "handshake": tls["handshake"],
        "notice": tls["notice"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--calls", type=int, default=3000, help="of each kind")
    parser.add_argument("--out", type=Path, help="the same goes here")
    parser.add_argument("--hop", type=float, metavar="US", help="in the place of the measured one")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside is not None:
        given = json.loads(args.inside)
        if given["calls"]:
            print(json.dumps(client(**given)), flush=True)
        else:
            join_only(given["workers"], given["trust"])
        return 0
    require(namespaces())
    found: list[dict[str, float]] = []
    for number in range(args.rounds):
        measured = {kind: run(kind, args.calls) for kind in ("tls", "insecure")}
        print(f"# round {number + 1}: {json.dumps(measured)}", file=sys.stderr, flush=True)
        found.append(costs(measured["tls"], measured["insecure"]))
    for cost in found if args.hop is not None else ():
        cost["hop"] = args.hop
    text = json.dumps({name: round(statistics.median(f[name] for f in found), 6) for name in found[0]}, indent=2)
    print(text)
    if args.out is not None:
        args.out.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
