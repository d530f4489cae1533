"""Attaching many workers of this machine: directly by the client, and by a join tree.

    python bench/attach.py [--workers 64 128] [--rounds 5] [--secret | --insecure] [--out FILE]

Workers are processes on loopback that listen before the measurement. Every round attaches to all of them twice, each time with a new
client: once so that the client joins all of them (`star`), once by default (`tree`). The results, as medians over the rounds, are: the time
until all have joined, and until a proc on each has answered a call; the processor time of the client until then; TLS handshakes of the
client, and the most of one worker; hosts with a direct connection to the client. All processes share the cores of this machine, so the
processor time of the client is representative of a cluster, and the time until all have joined is not.
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

STAR = "1000000"
VARIABLE = "MONARCH_ATTACH_FAN_OUT"


def worker(trust: dict[str, Any]) -> None:
    """Listens; answers each line of stdin with its TLS handshakes and processor time so far."""
    from monarch._core._native import Hosts
    from monarch._core.hosts.trust import Given
    from monarch._core.start.worker import WorkerLoop

    given = Given(trust.get("secret"), None, None, "insecure" in trust)
    print(WorkerLoop("tcp://127.0.0.1:0", given).url, flush=True)
    for _ in sys.stdin:
        print(json.dumps([Hosts.handshakes(), time.process_time()]), flush=True)
    os._exit(0)


def client(trust: dict[str, Any], addresses: list[str]) -> None:
    from monarch._core._native import Hosts
    from monarch._core.process.current import current_process
    from monarch.actor import Actor, attach_to_workers, endpoint, this_host

    class Echo(Actor):
        @endpoint
        def echo(self, x: int) -> int:
            return x

    # The parts that a client always needs are there.
    this_host().spawn_procs().initialized.get()
    started, used = time.perf_counter(), time.process_time()
    hosts = attach_to_workers(workers=addresses, **trust)
    hosts.initialized.get()
    attached, cpu, handshakes = time.perf_counter() - started, time.process_time() - used, Hosts.handshakes()
    below = len(current_process().hosts.native.relayed_hosts())  # pyright: ignore[reportOptionalMemberAccess]
    # The parent counts the workers now.
    print("attached", flush=True)
    sys.stdin.readline()
    started = time.perf_counter() - attached
    echoes = hosts.spawn_procs().spawn("echo", Echo)
    answers = list(echoes.echo.call(1).get().values())
    assert answers == [1] * len(addresses)
    line = {
        "attach_ms": attached * 1e3,
        "client_cpu_ms": cpu * 1e3,
        "client_handshakes": handshakes,
        "connected": len(addresses) - below,
        "answer_ms": (time.perf_counter() - started) * 1e3,
        "answer_cpu_ms": (time.process_time() - used) * 1e3,
        "answer_handshakes": Hosts.handshakes(),
    }
    print(json.dumps(line), flush=True)


class Workers:
    def __init__(self, count: int, how: list[str]) -> None:
        argv = [sys.executable, "-W", "ignore", __file__, "worker", *how]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.processes = [subprocess.Popen(argv, **pipes) for _ in range(count)]  # type: ignore[call-overload]
        self.addresses = [self._line(p) for p in self.processes]

    def _line(self, process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        return process.stdout.readline().strip()

    def counts(self) -> list[list[float]]:
        """For each worker, handshakes and seconds of processor time."""
        for p in self.processes:
            assert p.stdin is not None
            p.stdin.write("\n")
            p.stdin.flush()
        return [json.loads(self._line(p)) for p in self.processes]

    def close(self) -> None:
        for p in self.processes:
            p.kill()
        for p in self.processes:
            p.communicate()


def measure(workers: Workers, how: list[str], shape: str) -> dict[str, float]:
    before = workers.counts()
    env = {**os.environ, **({VARIABLE: STAR} if shape == "star" else {})}
    argv = [sys.executable, "-W", "ignore", __file__, "client", *how, *workers.addresses]
    with subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as script:
        assert script.stdin is not None and script.stdout is not None
        assert script.stdout.readline() == "attached\n"
        after = workers.counts()
        script.stdin.write("\n")
        script.stdin.flush()
        found: dict[str, float] = json.loads(script.stdout.readline())
    found["most_handshakes_of_a_worker"] = max(a[0] - b[0] for a, b in zip(after, before, strict=True))
    found["worker_cpu_ms"] = statistics.mean(a[1] - b[1] for a, b in zip(after, before, strict=True)) * 1e3
    return found


def main() -> int:
    if sys.argv[1:2] in (["worker"], ["client"]):
        role, how, *addresses = sys.argv[1:]
        trust = {"insecure": True} if how == "insecure" else {"secret": how}
        worker(trust) if role == "worker" else client(trust, addresses)
        return 0
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--insecure", action="store_true")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        secret = Path(folder) / "secret"
        with open(os.open(secret, os.O_CREAT | os.O_WRONLY, 0o600), "w", encoding="utf-8") as f:
            f.write(secrets.token_hex(32))
        how = ["insecure"] if args.insecure else [str(secret)]
        lines: list[dict[str, Any]] = []
        for count in args.workers:
            workers = Workers(count, how)
            try:
                for number in range(args.rounds):
                    for shape in ("star", "tree") if number % 2 == 0 else ("tree", "star"):
                        lines.append({"workers": count, "shape": shape, "round": number, **measure(workers, how, shape)})
            finally:
                workers.close()
    if args.out:
        args.out.write_text("".join(json.dumps(line) + "\n" for line in lines))
    keys = [k for k in lines[0] if k not in ("workers", "shape", "round")]
    print("workers shape  " + "  ".join(keys))
    for count in args.workers:
        for shape in ("star", "tree"):
            hit = [x for x in lines if x["workers"] == count and x["shape"] == shape]
            cells = [f"{statistics.median(x[k] for x in hit):.1f}".rjust(len(k)) for k in keys]
            print(f"{count:7} {shape}   " + "  ".join(cells))
    return 0


if __name__ == "__main__":
    sys.exit(main())
