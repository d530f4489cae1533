"""Collectors of torchmonarch 0.7.0 in processes of one host, below a root that its engine queries. Runs in its environment only."""

# pyright: basic
from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from monarch._src.job.telemetry_actor import TelemetryActor, telemetry_socket_dir  # pyright: ignore
from monarch.actor import context, endpoint, shutdown_context, this_host
from monarch.distributed_telemetry.engine import QueryEngine  # pyright: ignore


class Root(TelemetryActor):
    """A root with its own connections to collectors of other hosts, a socket for each, as one host has one for each job."""

    @endpoint
    def more(self, hosts: Any, names: list[str]) -> int:
        for name in names:
            self._start_worker_collector(hosts, TelemetryActor, name, f"telemetry_{name}")
        return len(self._worker_collectors)

    @endpoint
    def load(self, dumps: int, payload: str) -> None:
        for number in range(dumps):
            meshes = self._worker_collectors.values()
            for stored in [mesh.store_pyspy_dump.call(f"dump-{number}", f"proc[{number}]", payload) for mesh in meshes]:
                stored.get()


def start(collectors: int) -> tuple[Any, list[str]]:
    """The root, and the folders that have to be removed."""
    job = f"bench_{uuid.uuid4().hex[:8]}"
    names = [f"{job}_{number}" for number in range(collectors)]
    procs: Any = context().actor_instance.proc_mesh
    root = procs.spawn("root", Root, job, 0)
    assert root.activate.call_one().get()
    assert root.more.call_one(this_host(), names).get() == collectors
    return root, [telemetry_socket_dir(name) for name in (job, *names)]


def asking(root: Any) -> Callable[[str], list[dict[str, Any]]]:
    engine = QueryEngine(root)
    return lambda sql: engine.query(sql).to_pylist()


def stop() -> None:
    with suppress(TimeoutError):
        shutdown_context().get(timeout=5.0)
