"""1 GiB to 16 hosts through a mount, beside a chain of sockets that copies blocks of 1 MiB, on the same network.

    python bench/fs_relay.py receive FILE [NEXT]      a host of the chain; FILE "" keeps nothing

The chain has no encryption and no verification. It stores nothing, or writes a file in the place of the mount's store.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

BLOCK = 1 << 20
PORT = 22333


def receive(path: str, following: str = "") -> None:
    """Takes blocks until the end, passes them on, and answers a byte once the next host has all."""
    listener = socket.create_server(("", PORT))
    print("listening", flush=True)
    stream, _ = listener.accept()
    onward = socket.create_connection((following, PORT)) if following else None
    buffer = memoryview(bytearray(BLOCK))
    with open(path or os.devnull, "wb", buffering=0) as file:
        while True:
            held = 0
            while held < BLOCK and (count := stream.recv_into(buffer[held:])):
                held += count
            if not held:
                break
            if onward is not None:
                onward.sendall(buffer[:held])
            if path:
                file.write(buffer[:held])
    if onward is not None:
        onward.shutdown(socket.SHUT_WR)
        onward.recv(1)
    stream.sendall(b"d")
    stream.close()


def send(source: str, first: str) -> None:
    """Sends the files of a folder, and prints the seconds until all hosts have them."""
    begin = time.perf_counter()
    stream = socket.create_connection((first, PORT))
    buffer = memoryview(bytearray(BLOCK))
    for path in sorted(Path(source).iterdir()):
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                stream.sendall(buffer[:count])
    stream.shutdown(socket.SHUT_WR)
    assert stream.recv(1) == b"d"
    print(time.perf_counter() - begin)


def chain(network: Any, source: Path, files: list[str]) -> float:
    client, *hosts = network.hosts
    started: list[Any] = []
    for number, host in enumerate(hosts):
        following = [hosts[number + 1].name] if number + 1 < len(hosts) else []
        argv = [sys.executable, "-S", __file__, "receive", files[number], *following]
        started.append(host.popen(*argv, stdout=subprocess.PIPE))
    for process in started:
        assert process.stdout.readline() == "listening\n"
    sent = client.run(sys.executable, "-S", __file__, "send", str(source), hosts[0].name, stdout=subprocess.PIPE)
    for process in started:
        process.communicate()
    return float(sent.stdout)


def relay(_: Path, folder: Path, __: int, rounds: int) -> list[Any]:
    """Measures the relay. Stores are in memory if there is enough for all, else below the folder. `rounds` times 256 MiB are sent."""
    from fs_hosts import HOSTS, Traffic, cluster
    from fs_row import Row
    from fs_tree import fill

    pieces = 4 * rounds
    nbytes = pieces << 26
    available = next(
        int(line.split()[1]) << 10 for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable")
    )
    memory = available > nbytes * HOSTS * 1.15
    source, target = Path(folder, "source"), f"{folder}/mounted"
    source.mkdir()
    for number in range(pieces):
        fill(source / f"file{number:02}", 1 << 26)
    with cluster(folder, memory=memory) as (network, client):
        plain = chain(network, source, [""] * HOSTS)
        with tempfile.TemporaryDirectory(dir=folder) as disk:
            kept = [f"{'/dev/shm' if memory else disk}/{host.name}" for host in network.hosts[1:]]
            # The chain runs twice: memory that was not used for a while is slow at first.
            written = min(chain(network, source, kept) for _ in range(2))
            for host, path in zip(network.hosts[1:], kept, strict=True):
                host.run("rm", path)
        client.ask("mount", str(source), target, "demand", "as-is")
        traffic = Traffic(network.hosts)
        seconds = client.ask("complete", target)
        seen = traffic.each()
        states = client.ask("status", target)
        assert all(state["bytes_held"] == nbytes for state in states), states
        client.ask("close", target)
    received = sorted(count for count, _ in seen[1:])
    sent = sorted((count for _, count in seen[1:]), reverse=True)
    what, where = f"{nbytes >> 20:,} MiB to {HOSTS} hosts", "memory" if memory else "files"
    speed = [nbytes * HOSTS / value / 1e6 for value in (seconds, plain, written)]
    return [
        Row(f"{what}, stores in {where}", f"{seconds:.1f} s, {speed[0]:,.0f} MB/s in sum"),
        Row(
            f"the same by a chain of sockets; that writes to {where} too",
            f"{plain:.1f} s, {speed[1]:,.0f} MB/s; {written:.1f} s, {speed[2]:,.0f} MB/s",
        ),
        Row("speed of the mount, of the chain, and of that which writes", f"{plain / seconds:.2f}; {written / seconds:.2f}", "0.80"),
        Row("bytes received by a host, least and most, of the content", f"{received[0] / nbytes:.2f}, {received[-1] / nbytes:.2f}"),
        Row("bytes sent by the client, of the content", f"{seen[0][1] / nbytes:.2f}", "2"),
        Row("bytes sent by the host that sends most, of the content", f"{sent[0] / nbytes:.2f}"),
    ]


if __name__ == "__main__":
    {"receive": receive, "send": send}[sys.argv[1]](*sys.argv[2:])
