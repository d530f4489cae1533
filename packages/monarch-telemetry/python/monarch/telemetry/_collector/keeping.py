"""What one host keeps of one job: its rows, from the rings of its processes to the tables that a query reads. No actor, no threads.

Secrets in what programs print and raise are masked before a row is kept, so that no answer, export or capture has them.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version
from typing import Any

from monarch.extension import HostId, JobId, ProcId
from monarch.extension.events import Batch
from monarch.extension.masking import Masking
from monarch.telemetry._arrow import pa
from monarch.telemetry._collector.gpus import Gpus
from monarch.telemetry._collector.host_facts import Sampler, cpus, memory_bytes, process_memory
from monarch.telemetry._collector.options import Options
from monarch.telemetry._collector.snapshots import Host, snapshot
from monarch.telemetry._export.masked_column import masked_column
from monarch.telemetry._export.metric_totals import Totals
from monarch.telemetry._ingest.ingest import OPEN, Ingest
from monarch.telemetry._ingest.sampling import MOST_A_SECOND
from monarch.telemetry._sql.functions import key
from monarch.telemetry._store.store import Store
from monarch.telemetry._tables.catalog import TABLES
from monarch.telemetry._tables.facts import METRIC_TOTALS, RESOURCES, TELEMETRY_STATUS
from monarch.telemetry.errors import TelemetryError

# Tables whose rows are computed per query.
_MADE = frozenset({"telemetry_status", "metric_totals"})
# Missed measurements after which a gauge is stale: its process has ended.
_MISSED = 3
# The shortest interval between two measurements of most gauges, in seconds.
_GAUGES_EVERY = 10.0
_SCHEMAS: dict[str, Any] = {}


def schemas() -> dict[str, Any]:
    """The Arrow schema of every table, and of every table function by its key: what plans are made of."""
    if not _SCHEMAS:
        _SCHEMAS.update({key(name) if table.function else name: table.schema() for name, table in TABLES.items()})
    return _SCHEMAS


class Keeping:
    """Any thread. `jobs_of` gives the job of each process of the host that records, asked for processes that are not known yet."""

    def __init__(
        self,
        job: JobId,
        host: HostId,
        hostname: str,
        own: ProcId,
        jobs_of: Callable[[], dict[ProcId, JobId]],
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._job, self._host, self._own = job, host, own
        self._hostname = hostname
        self._jobs_of, self._clock = jobs_of, clock
        history = {name: table.schema() for name, table in TABLES.items() if table.retention in ("history", "on demand")}
        entities = {name: table.schema() for name, table in TABLES.items() if table.retention == "entities"}
        self.store = Store(history, entities, clock=clock, clean=Secrets(os.environ).masked)
        self.ingest = Ingest(self.store, int(host), hostname, int(job), clock=clock)
        self._sampler, self._gpus = Sampler(hostname), Gpus()
        self._jobs: dict[ProcId, JobId] = {}
        # Totals of the metrics of Monarch; those of programs are in `ingest`.
        self._totals, self._totals_lock = Totals(), threading.Lock()
        # The time of the last measurement in microseconds, by name, of the gauges that are measured less often.
        self._gauges_us: dict[str, int] = {}
        self._put_host()

    def _put_host(self) -> None:
        self.store.put(
            "hosts",
            int(self._host),
            {
                "host_id": int(self._host),
                "name": self._hostname,
                "address": "",
                "state": "ready",
                "joined_us": int(self._clock() * 1e6),
                "cpus": cpus(),
                "memory_bytes": memory_bytes(),
                "gpus_json": "[]",
                "version": version("monarch-core"),
            },
        )

    def configure(self, options: Options) -> None:
        """Changes what is kept from now on."""
        self.store.configure(int(options.budget_bytes), options.retention)
        self.ingest.serve_as(options.service_name)
        self.ingest.sample_above(None if options.level == "messages" else MOST_A_SECOND)
        rare = {"process.memory.vm_bytes": options.memory_interval_secs, "actor.message_queue_size": options.snapshot_interval_secs}
        self._gauges_us = {name: int(_MISSED * max(every, _GAUGES_EVERY) * 1e6) for name, every in rare.items()}

    def measured(self, table: str, batch: Any) -> None:
        """Adds rows of Monarch's own metrics, and counts them in the totals."""
        self.store.append(table, batch)
        with self._totals_lock:
            self._totals.add({table: [batch]})

    def take(self, batch: Batch) -> None:
        """Events of a process of this host: of the job, or of the agent, which records what its procs print and how they end."""
        if batch.proc == self._own:
            # Work for queries is not recorded: queries should not find themselves.
            return
        if batch.proc != self._host:
            if batch.proc not in self._jobs:
                self._jobs = self._jobs_of()
            if self._jobs.get(batch.proc, self._job) != self._job:
                return
        self.ingest.take(batch)
        if batch.ended:
            self._jobs.pop(batch.proc, None)

    def sample(self) -> None:
        """Adds rows of `resources`, and to `procs` the most memory that each has had in use."""
        living = self.ingest.places.living()
        now = self._clock()
        rows = self._sampler.rows({place.pid: place.name for place in living.values()}, now)
        gpus = self._gpus.sample()
        for gpu in gpus:
            none = {"cpu_pct": 0.0, "rss_bytes": 0, "threads": 0, "fds": 0}
            of = {"gpu": gpu.number, "gpu_util_pct": gpu.util_pct, "gpu_memory_bytes": gpu.used_bytes}
            rows.append({"timestamp_us": int(now * 1e6), "host": self._hostname, **none, **of})
        if gpus:
            models = [{"index": gpu.number, "name": gpu.name, "memory_bytes": gpu.memory_bytes} for gpu in gpus]
            self.store.put("hosts", int(self._host), {"gpus_json": json.dumps(models)})
        self.store.append("resources", pa.RecordBatch.from_pylist(rows, schema=RESOURCES.schema()))
        for proc, place in living.items():
            used = process_memory(place.pid)
            if used is not None and used.peak and self.store.entity("procs", proc) is not None:
                self.store.put("procs", proc, {"rss_peak_bytes": used.peak})

    def snapshot(self, number: int, look: Callable[[], dict[str, Any]]) -> None:
        """Adds the rows of a snapshot of this host. `look` gives the state of its processes, or raises `TelemetryError`."""
        try:
            looked: dict[str, Any] | TelemetryError = look()
        except TelemetryError as error:
            looked = error
        else:
            self.ingest.know_hosts(looked.get("hosts", ()))
            self.ingest.compare(looked)
        own = self.store.entity("hosts", int(self._host)) or {}
        client = self.store.entity("procs", int(self._job)) or {}
        host = Host(int(self._host), self._hostname, str(own.get("address", "")), int(self._job), client.get("started_us"))
        found = snapshot(looked, host, self.ingest.known(), number, int(self._clock() * 1e6))
        for table, batch in found.items():
            self.store.append(table, batch)

    def report(self, table: str, rows: Iterable[dict[str, Any]]) -> None:
        """Rows that another process has: of entities by the key of their first column, others added."""
        known = TABLES[table]
        if known.retention == "entities":
            for row in rows:
                self.store.put(table, row[known.columns[0].name], row)
        else:
            self.store.append(table, pa.RecordBatch.from_pylist(list(rows), schema=known.schema()))

    def tables(self, names: Iterable[str]) -> dict[str, tuple[Any, list[Any]]]:
        """Schema and rows of these tables, as they are now."""
        names = set(names)
        self.ingest.flush()
        if any(name.startswith("metric_") for name in names):
            self.ingest.metrics_now()
        found = self.store.snapshot(names - _MADE)
        if names & OPEN:
            for name, batches in self.ingest.open_rows().items():
                if name in names:
                    found[name] = [*found[name], *(batch for batch in batches if batch.num_rows)]
        if "telemetry_status" in names:
            found["telemetry_status"] = [self._status()]
        if "metric_totals" in names:
            found["metric_totals"] = [self._metric_totals()]
        return {name: (TABLES[name].schema(), batches) for name, batches in found.items()}

    def _metric_totals(self) -> Any:
        with self._totals_lock:
            self._totals.forget_gauges(int(self._clock() * 1e6), self._gauges_us, int(_MISSED * _GAUGES_EVERY * 1e6))
            rows = self._totals.table()
        programs = Totals()
        programs.add(self.ingest.metric_states())
        for row in programs.table():
            resource = {"host.name": self._hostname, **json.loads(row["resource_attributes_json"])}
            rows.append({**row, "resource_attributes_json": json.dumps(resource, sort_keys=True)})
        return pa.RecordBatch.from_pylist(rows, schema=METRIC_TOTALS.schema())

    def _status(self) -> Any:
        counts = self.ingest.counts()
        weights = {"messages": counts.weight, "message_status_events": counts.weight, "sent_messages": counts.weight}
        dropped = {"logs": counts.lost_lines, "metric_sums": counts.dropped_updates, **counts.dropped_rows}
        rows = [
            {
                "host": self._hostname,
                "table_name": one.table_name,
                "rows": one.rows,
                "bytes": one.bytes,
                "oldest_us": one.oldest_us,
                "dropped": one.dropped + dropped.get(one.table_name, 0),
                "sample_weight": float(weights.get(one.table_name, 1)),
            }
            for one in self.store.status()
        ]
        rings = {"host": self._hostname, "table_name": "(rings)", "rows": 0, "bytes": 0, "dropped": counts.lost, "sample_weight": 1.0}
        return pa.RecordBatch.from_pylist([*rows, rings], schema=TELEMETRY_STATUS.schema())


# Columns of free text, by table.
_COLUMNS = {
    "logs": ("line",),
    "failures": ("message", "traceback", "last_lines"),
    "actor_failures": ("failure_error_message",),
    "actor_status_events": ("reason",),
}
# Columns of JSON, whose names are chosen by the program.
_JSON = {"events": ("fields_json",), "spans": ("fields_json",)}


class Secrets:
    """Those found by their form, and values of the secret variables of `environ`, which is that of the host."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._masking = Masking.of_environment(environ)

    def masked(self, table: str, batch: Any) -> Any:
        """The batch of a table without secrets; the same object where it has none."""
        for name in (*_COLUMNS.get(table, ()), *_JSON.get(table, ())):
            column = batch.column(name)
            clean = masked_column(self._masking, column, is_json=table in _JSON)
            if clean is not column:
                at = batch.schema.get_field_index(name)
                batch = batch.set_column(at, batch.schema.field(at), clean)
        return batch
