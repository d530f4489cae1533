"""What the workers have printed, as copies on this machine."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, NamedTuple

from monarch.job._job.launcher import Host, LogFile
from monarch.job.errors import JobError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from monarch.job.kubernetes.access.client import Cluster

# Of each pod in one look.
_LINES = 10_000
# Pods without an answer that a line has named; `monarch logs -f` looks again and again.
_named: set[str] = set()


class Printing(NamedTuple):
    """A container of a pod of a host."""

    host: Host
    pod: str
    container: str


def copy_logs(cluster: Cluster, printing: Iterable[Printing], folder: str) -> list[LogFile]:
    """Copies below `folder`, one for each pod; a line on stderr names a pod that gives nothing and of which there is no copy."""
    os.makedirs(folder, 0o700, exist_ok=True)
    found: list[LogFile] = []
    for host, pod, container in printing:
        path = os.path.join(folder, f"{pod}.log")
        found.append(LogFile(host.mesh, host.rank, "out", path))
        try:
            _copy(path, cluster.pod_log(pod, container, _LINES).encode())
        except JobError as error:
            if pod not in _named and not os.path.exists(path):
                _named.add(pod)
                print(f"monarch: no output of {host}: {error}", file=sys.stderr)
    return found


def _copy(path: str, text: bytes) -> None:
    """Adds what is new, so that a reader of the copy can go on where it was."""
    with open(path, "a+b", opener=lambda name, flags: os.open(name, flags | os.O_CLOEXEC, 0o600)) as copy:
        copy.seek(0)
        before = copy.read()
        # What is there already may begin earlier than what is kept of a long log.
        first = text.partition(b"\n")[0]
        start = before.rfind(first) if first and not text.startswith(before) else 0
        known = before[start:] if start >= 0 else b""
        copy.write(text[len(known) :] if text.startswith(known) else text)
