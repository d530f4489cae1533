"""Rows that only the asking process has: hosts that were lost, and who has asked for what. A part of each answer that reads them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

from monarch.actor import Extent
from monarch.extension import HostEnd, Listening, listen
from monarch.telemetry._arrow import pa
from monarch.telemetry._ingest.regions import region_json
from monarch.telemetry._store.store import Store
from monarch.telemetry._tables.catalog import TABLES

_BUDGET = 16 << 20
_HISTORY = (
    *("audit", "job_events", "failures", "events"),
    *("pyspy_dumps", "pyspy_stack_traces", "pyspy_frames", "pyspy_local_variables"),
)
_ENTITIES = ("hosts", "meshes")


class OwnRows:
    """Any thread. `retention` is in seconds."""

    def __init__(self, retention: float) -> None:
        history = {name: TABLES[name].schema() for name in _HISTORY}
        entities = {name: TABLES[name].schema() for name in _ENTITIES}
        self._store = Store(history, entities, clock=time.time, budget=_BUDGET, retention=retention)
        self._lock = threading.Lock()
        # Rows of `hosts` of the collectors, by the number of the host in the job.
        self._hosts: dict[int, dict[str, Any]] = {}
        self._listening: Listening | None = None

    def append(self, table: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Adds rows to a table of history. `KeyError` for a table that is not kept here."""
        self._store.append(table, pa.RecordBatch.from_pylist([dict(row) for row in rows], schema=TABLES[table].schema()))

    def append_batch(self, table: str, batch: Any) -> None:
        """Adds rows that are Arrow already. The errors of `append`."""
        self._store.append(table, batch)

    def note(self, name: str, level: str, **fields: object) -> None:
        """Adds a row of `events` about telemetry itself."""
        row = {
            "name": name,
            "target": "monarch.telemetry",
            "level": level,
            "fields_json": json.dumps(fields, default=str),
            "timestamp_us": int(time.time() * 1e6),
            "thread_id": threading.get_native_id(),
            "thread_name": threading.current_thread().name,
        }
        self.append("events", [row])

    def know_hosts(self, rows: Iterable[Mapping[str, Any]], names: Mapping[int, int]) -> None:
        """What the collectors have about their hosts: it is shown with the end of a host that can answer no more.

        `names` has what the job calls each host, by its number.
        """
        with self._lock:
            self._hosts.update({names.get(row["host_id"], row["host_id"]): dict(row) for row in rows})
            if self._listening is None:
                self._listening = listen(self._on_event)

    def know_mesh(self, number: int, name: str, extent: Extent) -> None:
        """A mesh of hosts, which no process records: this one has it."""
        shape = region_json(dict(zip(extent.labels, extent.sizes, strict=True)))
        row = {"id": number, "timestamp_us": int(time.time() * 1e6), "class": "Host", "given_name": name, "full_name": name}
        self._store.put("meshes", number, {**row, "shape_json": shape})

    def _on_event(self, event: object) -> None:
        if not isinstance(event, HostEnd):
            return
        with self._lock:
            known = self._hosts.get(int(event.host))
        if known is not None:
            left = event.reason.kind == "stopped"
            end = {"state": "left" if left else "lost", "reason": event.describe(), "left_us": int(time.time() * 1e6)}
            self._store.put("hosts", known["host_id"], {**known, **end}, ended=True)

    def tables(self, names: Iterable[str]) -> dict[str, tuple[Any, list[Any]]]:
        """Schema and rows of those of these tables that have rows here."""
        found = self._store.snapshot([name for name in names if name in (*_HISTORY, *_ENTITIES)])
        return {name: (TABLES[name].schema(), batches) for name, batches in found.items() if batches}

    def stop(self) -> None:
        """Listens no more."""
        with self._lock:
            if self._listening is not None:
                self._listening.stop()
                self._listening = None
