"""What the workers have printed, as copies on this machine."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from monarch.job._job.launcher import Host, LogFile
from monarch.job.errors import JobError
from monarch.job.kubernetes.manifests import names

if TYPE_CHECKING:
    from monarch.job.kubernetes.access.client import Cluster

# Of each pod in one look.
_LINES = 10_000
# Pods without an answer that a line has named; `monarch logs -f` looks again and again.
_named: set[str] = set()


def copy_logs(cluster: Cluster, ids: dict[str, Any], folder: str) -> list[LogFile]:
    """Copies below `folder`, one for each pod that clients were given; a line on stderr names a pod that gives nothing."""
    os.makedirs(folder, 0o700, exist_ok=True)
    found: list[LogFile] = []
    for mesh, records in ids["places"].items():
        for rank, record in enumerate(records):
            name: str = record["name"]
            if not name:
                continue
            path = os.path.join(folder, f"{name}.log")
            found.append(LogFile(mesh, rank, "out", path))
            try:
                _copy(path, cluster.pod_log(name, names.CONTAINER, _LINES).encode())
            except JobError as error:
                if name not in _named:
                    _named.add(name)
                    print(f"monarch: no output of {Host(mesh, rank)}: {error}", file=sys.stderr)
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
