"""Memory of another host (`tcp`), beside one raw TCP stream over the same network in the same run.

    python bench/rdma_hosts.py [--rounds 5] [--trust tls,insecure]

Hosts are network namespaces (`tools/netns`; needs root): the script is a client on one of them and reads and writes memory of an actor on
another one, 4 KiB to 256 MiB, over a veth pair. The raw stream is one of Python's sockets between the same two processes, into memory that
is there. Prints a table: medians over the rounds, the ratio to the raw stream of the same round, and processor seconds a GB of both sides.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from requirement import namespaces, require

HERE = Path(__file__).resolve().parent
SIZES = {"4 KiB": 4 << 10, "1 MiB": 1 << 20, "64 MiB": 64 << 20, "256 MiB": 256 << 20}
VOLUME = 1 << 30
LEAST, MOST = 3, 1000
# Bytes of one read or write of the raw stream: larger ones are slower.
PIECE = 1 << 20
MONARCH = "from monarch.extension.cli import main; main()"


def spent(body: Callable[[], object], times: int) -> float:
    """The median of `times` runs, in seconds; the first is not counted."""
    body()
    seen: list[float] = []
    for _ in range(times):
        start = time.perf_counter()
        body()
        seen.append(time.perf_counter() - start)
    return statistics.median(seen)


def raw(server: str, memory: bytearray) -> Callable[[], None]:
    """Reads the size of the memory in bytes, over one stream."""
    host, port = server.split()
    stream = socket.create_connection((host, int(port)))
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def read() -> None:
        stream.sendall(len(memory).to_bytes(8, "little"))
        view = memoryview(memory)
        while view:
            view = view[stream.recv_into(view[:PIECE]) :]

    return read


def client(worker: str, secret: str) -> None:
    """Prints one JSON object: name of a number, in seconds or bytes a second."""
    import warnings

    from monarch.actor import Actor, attach_to_workers, endpoint
    from monarch.rdma import RDMABuffer

    warnings.simplefilter("ignore")

    class Owner(Actor):
        @endpoint
        def share(self, nbytes: int) -> RDMABuffer:
            self.memory = bytearray(b"\x01" * nbytes)
            return RDMABuffer(memoryview(self.memory))

        @endpoint
        def cpu(self) -> float:
            return time.process_time()

        @endpoint
        def serve(self) -> str:
            listener = socket.create_server(("0.0.0.0", 0))
            data = memoryview(bytearray(b"\x01" * max(SIZES.values())))

            def answer() -> None:
                stream, _ = listener.accept()
                stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while wanted := stream.recv(8):
                    for at in range(0, left := int.from_bytes(wanted, "little"), PIECE):
                        stream.sendall(data[at : min(at + PIECE, left)])

            threading.Thread(target=answer, daemon=True).start()
            return f"{os.uname().nodename} {listener.getsockname()[1]}"

    trust: dict[str, Any] = {"secret": secret} if secret else {"insecure": True}
    owner = attach_to_workers(workers=[worker], **trust).spawn_procs().spawn("owner", Owner)
    found: dict[str, float] = {}

    def measure(name: str, nbytes: int, body: Callable[[], object]) -> None:
        times = max(LEAST, min(MOST, VOLUME // nbytes))
        before = time.process_time() + owner.cpu.call_one().get()
        seconds = spent(body, times)
        found[name] = nbytes / seconds if nbytes >= 1 << 20 else seconds
        if nbytes >= 1 << 20:
            found[f"cpu {name}"] = (time.process_time() + owner.cpu.call_one().get() - before) / (nbytes * (times + 1) / 1e9)

    for size, nbytes in SIZES.items():
        memory = bytearray(nbytes)
        measure(f"raw {size}", nbytes, raw(owner.serve.call_one().get(), memory))
        buffer = owner.share.call_one(nbytes).get()
        assert buffer.path == "tcp", buffer.path
        view = memoryview(memory)
        measure(f"read {size}", nbytes, lambda b=buffer, v=view: b.read_into(v).get())
        assert memory[0] == memory[-1] == 1
        measure(f"write {size}", nbytes, lambda b=buffer, v=view: b.write_from(v).get())
        buffer.drop().get()
    print(json.dumps(found))


def one_round(trust: str) -> dict[str, float]:
    sys.path.insert(0, str(HERE.parent))
    from tools.netns import Network

    with tempfile.TemporaryDirectory() as folder, Network(2) as network:
        here, there = network.hosts
        secret = Path(folder, "secret")
        secret.touch(0o600)
        secret.write_bytes(secrets.token_bytes(32))
        how = ["--insecure"] if trust == "insecure" else ["--secret-file", str(secret)]
        argv = ["-W", "ignore", "-c", MONARCH, "worker", "--listen", f"tcp://{there.name}:22222", *how]
        worker = there.popen(sys.executable, *argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert worker.stdout is not None
        address = worker.stdout.readline().split()[-1]
        given = ["--client", address, "" if trust == "insecure" else str(secret)]
        done = here.run(sys.executable, str(Path(__file__).resolve()), *given, capture_output=True)
        return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--trust", default="tls,insecure")
    parser.add_argument("--client", nargs=2, metavar=("WORKER", "SECRET"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.client:
        client(*given.client)
        return
    require(namespaces())
    print(f"{'':<24} {'median':>12} {'best':>12} {'of raw':>8} {'s/GB':>6}")
    for trust in given.trust.split(","):
        rounds = [one_round(trust) for _ in range(given.rounds)]
        for name in (n for n in rounds[0] if not n.startswith("cpu ")):
            values = [r[name] for r in rounds]
            what, _, size = name.partition(" ")
            if values[0] < 1:
                texts = [f"{f(values) * 1e6:.1f} us" for f in (statistics.median, min)]
                print(f"{trust + ' ' + name:<24} {texts[0]:>12} {texts[1]:>12}")
                continue
            texts = [f"{f(values) / 1e9:.2f} GB/s" for f in (statistics.median, max)]
            ratio = statistics.median(r[name] / r[f"raw {size}"] for r in rounds)
            cpu = statistics.median(r[f"cpu {name}"] for r in rounds)
            print(f"{trust + ' ' + name:<24} {texts[0]:>12} {texts[1]:>12} {ratio if what != 'raw' else 1:>8.2f} {cpu:>6.2f}")


if __name__ == "__main__":
    main()
