"""Large arguments and answers between hosts, beside a raw TCP and a raw TLS stream in the same run.

    python bench/hosts_bandwidth.py [--rounds 10] [--sizes 1,64,256] [--ways to,from,across] [--trust tls,insecure]

Hosts are `monarch worker` processes on loopback; the script is a client of two of them. A round moves each size once each way:
`to` an actor from the client, `from` it as its answer, and `across` from an actor of one host to one of the other. Arguments are NumPy
arrays. `raw` and `raw tls` move as many bytes in writes of 1 MiB through one stream between two processes, with Python's sockets.

Prints a table: GB/s as medians over the rounds, and processor seconds per GB of all processes that take part, both sides.
"""

from __future__ import annotations

import argparse
import os
import secrets
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from requirement import packages, program, require

MIB = 1 << 20
TICK = os.sysconf("SC_CLK_TCK")
WORKER = "from monarch.extension.cli import main; main()"
# Calls before the measurement: small ones, so that processes and connections exist; and large ones, so that memory is allocated.
WARM = 3


def cpu_of(pid: int) -> float:
    """Processor seconds of a process and all its descendants."""
    children: dict[int, list[int]] = defaultdict(list)
    used: dict[int, float] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            stat = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children[int(stat[1])].append(int(name))
        used[int(name)] = (int(stat[11]) + int(stat[12])) / TICK
    todo, total = [pid], 0.0
    while todo:
        at = todo.pop()
        total += used.get(at, 0.0)
        todo += children[at]
    return total


def actor_class() -> Any:
    from monarch.actor import Actor, endpoint

    class Store(Actor):
        def __init__(self) -> None:
            self.made: dict[int, np.ndarray] = {}

        def of(self, size: int) -> np.ndarray:
            if size not in self.made:
                self.made[size] = np.arange(size // 8, dtype=np.int64)
            return self.made[size]

        @endpoint
        def take(self, x: np.ndarray) -> int:
            return int(x[0]) + int(x[-1])

        @endpoint
        def give(self, size: int) -> np.ndarray:
            return self.of(size)

        @endpoint
        def send(self, other: Any, size: int) -> float:
            data = self.of(size)
            start = time.perf_counter()
            other.take.call_one(data).get()
            return time.perf_counter() - start

    return Store


class Job:
    def __init__(self, trust: str, folder: str) -> None:
        from monarch.actor import attach_to_workers

        secret = Path(folder) / f"secret-{trust}"
        secret.touch(0o600)
        secret.write_text(secrets.token_hex(32))
        how = ["--insecure"] if trust == "insecure" else ["--secret-file", str(secret)]
        self.workers: list[Any] = []
        addresses: list[str] = []
        for _ in range(2):
            argv = [sys.executable, "-W", "ignore", "-c", WORKER, "worker", "--listen", "tcp://127.0.0.1:0", *how]
            worker = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
            self.workers.append(worker)
            assert worker.stdout is not None
            addresses.append(worker.stdout.readline().split()[2].rstrip(",:;."))
        keywords: dict[str, Any] = {"insecure": True} if trust == "insecure" else {"secret": str(secret)}
        self.hosts = attach_to_workers(workers=addresses, **keywords)
        actors = self.hosts.spawn_procs({"procs": 1}).spawn("store", actor_class())
        self.one, self.other = (actors.slice(hosts=i, procs=0) for i in range(2))
        for _ in range(WARM):
            self.one.give.call_one(8).get()
            self.one.send.call_one(self.other, 8).get()

    def cpu(self) -> float:
        return time.process_time() + sum(cpu_of(w.pid) for w in self.workers)

    def to(self, data: np.ndarray) -> float:
        start = time.perf_counter()
        self.one.take.call_one(data).get()
        return time.perf_counter() - start

    def give(self, data: np.ndarray) -> float:
        start = time.perf_counter()
        got = self.one.give.call_one(data.nbytes).get()
        took = time.perf_counter() - start
        assert got[-1] == data[-1]
        return took

    def across(self, data: np.ndarray) -> float:
        return self.one.send.call_one(self.other, data.nbytes).get()

    def close(self) -> None:
        self.hosts.shutdown().get()
        for worker in self.workers:
            worker.wait()


class Raw:
    """One stream to a process that reads and, at the end of each size, answers with a byte."""

    def __init__(self, folder: str, encrypted: bool) -> None:
        key, certificate = f"{folder}/key.pem", f"{folder}/certificate.pem"
        if encrypted:
            argv = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=raw"]
            subprocess.run([*argv, "-keyout", key, "-out", certificate], check=True, stderr=subprocess.DEVNULL)
        with socket.create_server(("127.0.0.1", 0)) as listening:
            argv = [sys.executable, __file__, "read", str(listening.fileno()), *([key, certificate] if encrypted else [])]
            self.reader = subprocess.Popen(argv, pass_fds=[listening.fileno()])
            self.stream = socket.create_connection(listening.getsockname())
        if encrypted:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            self.stream = context.wrap_socket(self.stream)

    def cpu(self) -> float:
        return time.process_time() + cpu_of(self.reader.pid)

    def to(self, data: np.ndarray) -> float:
        start = time.perf_counter()
        view = data.view(np.uint8).data
        self.stream.sendall(len(view).to_bytes(8, "big"))
        for at in range(0, len(view), MIB):
            self.stream.sendall(view[at : at + MIB])
        assert self.stream.recv(1) == b"."
        return time.perf_counter() - start

    def close(self) -> None:
        self.stream.close()
        self.reader.wait()


def read(fd: str, *pair: str) -> None:
    stream = socket.socket(fileno=int(fd)).accept()[0]
    if pair:
        key, certificate = pair
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        stream = context.wrap_socket(stream, server_side=True)
    buffer = memoryview(bytearray(MIB))
    while len(head := stream.recv(8)) == 8:
        left = int.from_bytes(head, "big")
        while left:
            left -= stream.recv_into(buffer, min(left, MIB))
        stream.sendall(b".")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--sizes", default="1,64,256", help="MiB")
    parser.add_argument("--ways", default="to,from,across")
    parser.add_argument("--trust", default="tls,insecure")
    parser.add_argument("--no-raw", action="store_true")
    options = parser.parse_args()
    require(*([] if options.no_raw else [program("openssl", packages("test"))]))
    sizes = [int(s) for s in options.sizes.split(",")]
    walls: dict[tuple[str, int], list[float]] = defaultdict(list)
    cpus: dict[tuple[str, int], list[float]] = defaultdict(list)
    loads: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        movers: dict[str, tuple[Any, Any]] = {}
        for trust in filter(None, options.trust.split(",")):
            job = Job(trust, folder)
            ways = {"to": job.to, "from": job.give, "across": job.across}
            movers |= {f"{trust} {way}": (job, ways[way]) for way in options.ways.split(",")}
        if not options.no_raw:
            for name, raw in (("raw", Raw(folder, False)), ("raw tls", Raw(folder, True))):
                movers[name] = (raw, raw.to)
        for turn in range(options.rounds + 1):
            for size in sizes:
                data = np.arange(size * MIB // 8, dtype=np.int64)
                # The time of a single small transfer is below the resolution of the processor clock.
                times = 1 if size >= 16 else 20
                for name, (what, move) in movers.items():
                    if times == 1 and turn == 0:
                        move(data)
                    before = what.cpu()
                    got = [data.nbytes / 1e9 / move(data) for _ in range(times)]
                    if turn:
                        walls[name, size].append(statistics.median(got))
                        cpus[name, size].append((what.cpu() - before) / (times * data.nbytes / 1e9))
            loads.append(os.getloadavg()[0])
        print(f"load {min(loads):.1f} to {max(loads):.1f}, {os.cpu_count()} cores, {options.rounds} rounds\n")
        cell = "GB/s (best), s/GB"
        print(f"| way | {' | '.join(f'{size} MiB: {cell}' for size in sizes)} |\n|---|{'---:|' * len(sizes)}")
        for name in movers:
            cells = [
                f"{statistics.median(walls[name, s]):.2f} ({max(walls[name, s]):.2f}), {statistics.mean(cpus[name, s]):.2f}" for s in sizes
            ]
            print(f"| {name} | {' | '.join(cells)} |")
        for what in {id(what): what for what, _ in movers.values()}.values():
            what.close()


if __name__ == "__main__":
    if sys.argv[1:2] == ["read"]:
        read(*sys.argv[2:])
    else:
        main()
