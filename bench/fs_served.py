"""The work of a mount's server on this machine: requests by kind, and processor time."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from monarch.extension.channel import Channel, connect
from monarch.fs._daemon.daemon_folder import SOCKET, daemon_folder
from monarch.fs._daemon.mount_record import mount_key

_TICK = os.sysconf("SC_CLK_TCK")


class Served(NamedTuple):
    requests: dict[str, int]
    # Processor seconds of the server, with all its threads.
    processor: float
    faults: int
    # The pid of the server.
    pid: int

    def since(self, before: Served) -> Served:
        """The work between the two."""
        counts = Counter(self.requests)
        counts.subtract(before.requests)
        return Served(
            {kind: n for kind, n in sorted(counts.items()) if n}, self.processor - before.processor, self.faults - before.faults, self.pid
        )


def served(target: str) -> Served:
    """Queries the daemon of this process's `MONARCH_HOME`."""
    channel = Channel(connect(daemon_folder(), SOCKET, timeout=10))
    try:
        channel.send({"op": "status", "target": mount_key(target), "call": 1})
        head = channel.take(timeout=10).head
    finally:
        channel.close()
    if head.get("error"):
        raise RuntimeError(f"{target}: {head['error']}")
    stat = Path(f"/proc/{head['server']}/stat").read_text().rpartition(")")[2].split()
    return Served(dict(head["requests"]), (int(stat[11]) + int(stat[12])) / _TICK, head["status"]["faults"], head["server"])
