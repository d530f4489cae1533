"""Resource attributes: what a measurement, log line or span is from, as section names of OpenTelemetry.

The collector of a host has base attributes; `hosts`, `procs` and `meshes` give those of a process. OTEL_RESOURCE_ATTRIBUTES
replaces both.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from os import environ
from pathlib import Path
from threading import Lock
from typing import Any

from monarch.telemetry._tables.metrics import SDK

# Late rows may refer to ended processes; as many are kept as in the tables of entities.
_KEPT = 20_000
# Batches that wait for an `update`: while a receiver is gone there may be none.
_MOST_OFFERED = 100
_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_LONGEST_NAME = 253


def kubernetes(environment: Mapping[str, str] = environ, namespace_file: Path = _NAMESPACE_FILE) -> dict[str, str]:
    """`k8s.namespace.name` and `k8s.pod.name` of this process; empty outside of Kubernetes.

    The variables POD_NAMESPACE and POD_NAME come first: a manifest can set them by the downward API. Else the pod is the host name.
    """
    if "KUBERNETES_SERVICE_HOST" not in environment:
        return {}
    namespace = environment.get("POD_NAMESPACE", "")
    if not namespace:
        try:
            namespace = namespace_file.read_text(encoding="ascii").strip()[:_LONGEST_NAME]
        except (OSError, ValueError):
            namespace = ""
    found = {"k8s.namespace.name": namespace, "k8s.pod.name": environment.get("POD_NAME") or environment.get("HOSTNAME", "")}
    return {name: value for name, value in found.items() if value}


class Resources:
    """Attributes by process, from the rows of `hosts`, `procs` and `meshes`. Any thread."""

    def __init__(self, base: Mapping[str, Any], replaced: Mapping[str, Any] | None = None) -> None:
        """`base`: such as `host.name` and `monarch.job`; `replaced`: OtlpSettings.resource."""
        self._base = {"service.name": "monarch", **SDK, **base}
        self._replaced = dict(replaced or {})
        self._hosts: dict[int, str] = {}
        self._meshes: dict[int, str] = {}
        # By proc: host, mesh, rank, pid.
        self._procs: dict[int, tuple[int, int, int, int]] = {}
        self._by_pid: dict[int, int] = {}
        self._offered: deque[tuple[str, Any]] = deque()
        self._lock = Lock()

    def offer(self, table: str, batch: Any) -> None:
        """Takes the rows of a table for the next `update`."""
        self._offered.append((table, batch))
        if len(self._offered) > _MOST_OFFERED:
            self.update()

    def update(self) -> None:
        """Adds what was offered."""
        with self._lock:
            while self._offered:
                self.add(*self._offered.popleft())

    def add(self, table: str, batch: Any) -> None:
        """Rows of a table as a `pyarrow.RecordBatch`; tables that have no processes are left out."""
        if table == "hosts":
            self._hosts.update(zip(*_columns(batch, "host_id", "name"), strict=True))
            _bound(self._hosts)
        elif table == "meshes":
            self._meshes.update(zip(*_columns(batch, "id", "given_name"), strict=True))
            _bound(self._meshes)
        elif table == "procs":
            for proc, host, mesh, rank, pid in zip(*_columns(batch, "proc_id", "host_id", "mesh_id", "rank", "pid"), strict=True):
                self._procs[proc] = (host, mesh, rank, pid)
                self._by_pid[pid] = proc
            _bound(self._procs)
            _bound(self._by_pid)

    def merged(self, more: Mapping[str, Any]) -> dict[str, Any]:
        """The attributes of a row that has some of its own."""
        return {**self._base, **more, **self._replaced}

    def of_process(self, process: int) -> dict[str, Any]:
        """Those of a process by its `proc_id`; the base attributes where it is not known."""
        found = self._procs.get(process)
        if found is None:
            return self.merged({})
        host, mesh, rank, pid = found
        more = {"host.name": self._hosts.get(host), "monarch.mesh": self._meshes.get(mesh), "monarch.rank": rank, "process.pid": pid}
        return self.merged({name: value for name, value in more.items() if value is not None})

    def process_of(self, host: str, pid: int) -> int | None:
        """The `proc_id` of a process of a host; None where it is not known."""
        proc = self._by_pid.get(pid)
        return proc if proc is not None and self._hosts.get(self._procs.get(proc, (0,))[0], host) == host else None


def _columns(batch: Any, *names: str) -> tuple[list[Any], ...]:
    return tuple(batch.column(name).to_pylist() for name in names)


def _bound(known: dict[int, Any]) -> None:
    """The oldest go first."""
    while len(known) > _KEPT:
        del known[next(iter(known))]
