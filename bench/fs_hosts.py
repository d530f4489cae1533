"""Mounts on 16 hosts of this machine: each has namespaces of its own for network, mounts, memory and processes, a home and a store."""

from __future__ import annotations

import os
import secrets
import statistics
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fs_reads
from fs_client import Client
from fs_one import edit_text
from fs_row import Row, megabytes, milliseconds
from fs_tree import SMALL

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.netns import Host, Network, unavailable
from tools.netns.cluster import Worker

HOSTS = 16


class Traffic:
    """The bytes that the interfaces of hosts have received and sent since this object was made."""

    def __init__(self, hosts: list[Host]) -> None:
        self._hosts = hosts
        self._before = [_counters(host) for host in hosts]

    def each(self) -> list[tuple[int, int]]:
        """Bytes received and sent, by host."""
        now = [_counters(host) for host in self._hosts]
        return [(a[0] - b[0], a[1] - b[1]) for a, b in zip(now, self._before, strict=True)]


def _counters(host: Host) -> tuple[int, int]:
    for line in Path(f"/proc/{host.namespace.first}/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == "eth0":
            fields = numbers.split()
            return int(fields[0]), int(fields[8])
    raise LookupError(f"{host.name} has no interface eth0")


@contextmanager
def cluster(folder: Path, *, memory: bool = False) -> Generator[tuple[Network, Client]]:
    """Workers on all hosts but the first, which is the client's, attached to all. `memory`: stores in the shared memory of each host."""
    if reason := unavailable():
        raise RuntimeError(reason)
    place = Path(tempfile.mkdtemp(dir=folder))
    secret = place / "secret"
    secret.touch(0o600)
    secret.write_bytes(secrets.token_bytes(32))
    with Network(HOSTS + 1) as network:

        def env(host: Host) -> dict[str, str]:
            home = place / host.name
            home.mkdir(mode=0o700)
            made = {**os.environ, "MONARCH_HOME": str(home)}
            return {**made, "MONARCH_FS_STORE_DIR": "/dev/shm/store"} if memory else made

        first, *hosts = network.hosts
        workers = [Worker(host, env(host), secret) for host in hosts]
        client = Client(first.popen, env(first), str(secret), tuple(worker.address for worker in workers))
        try:
            yield network, client
        finally:
            client.end()


def hosts(source: Path, folder: Path, files: int, rounds: int) -> list[Row]:
    """Measures the tree on many hosts. Each round has new hosts with empty stores."""
    first: list[float] = []
    again: list[float] = []
    filled: list[float] = []
    refreshes: list[float] = []
    edits: list[float] = []
    shipped: list[float] = []
    opened: list[float] = []
    egress: list[float] = []
    target = f"{folder}/mounted"
    for number in range(rounds):
        with cluster(folder) as (network, client):
            begin, mounting = Traffic(network.hosts), str(source / SMALL)
            first.append(client.ask("mount", mounting, target, "hot", "as-is"))
            filled.append(client.ask("complete", target))
            traffic = begin.each()
            opened.extend(received for received, _ in traffic[1:])
            egress.append(traffic[0][1])
            client.ask("close", target)
            again.append(client.ask("mount", mounting, target, "hot", "as-is"))
            client.ask("complete", target)
            popen: list[Any] = [host.popen for host in network.hosts[1:]]
            for edit in range(4):
                path, text = f"d{edit}/f8.py", edit_text(1000 + number * 10 + edit)
                begin = Traffic(network.hosts)
                refreshed, seen = fs_reads.edited(
                    source / SMALL / path, f"{target}/{path}", text, lambda: client.ask("refresh", target), popen
                )
                # The first edit of a round is the warm-up.
                if edit:
                    refreshes.append(refreshed)
                    edits.append(max(seen))
                    shipped.extend(received for received, _ in begin.each()[1:])
            client.ask("close", target)
    return [
        Row(f"{files:,} files mounted on {HOSTS} hosts, nothing known before", milliseconds(first), "1,500 ms"),
        Row("after that, until every byte is on every host", milliseconds(filled)),
        Row("the same tree again", milliseconds(again)),
        Row(
            "bytes received by a host for the new tree, median and most",
            megabytes(statistics.median(opened), max(opened)),
        ),
        Row("bytes sent by the client for it", megabytes(statistics.median(egress))),
        Row(f"edit of a file of 5 kB, until `refresh()` is done on {HOSTS} hosts", milliseconds(refreshes)),
        Row("the same, until the last reader has it", milliseconds(edits), "150 ms"),
        Row("bytes received by a host for the edit, median and most", f"{statistics.median(shipped):,.0f}, {max(shipped):,.0f}", "64 KiB"),
    ]
