"""The rows of Monarch's own metrics, made of aggregates of other tables: a statement for each source, and what its answer means.

    rows = measure(lambda sql: engine.ask(sql).table, Window(since_us, until_us), {"host.name": "node-1"})

A statement reads one window of time, from `since_us` on and before `until_us`; that of endpoint_stats 12 seconds earlier. Counters of rows
are deltas of the window; counters that a table keeps itself are cumulative. An answer with aggregates that are NULL, as those of no rows,
gives no row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from json import dumps, loads
from math import isfinite
from os import sysconf
from typing import Any, NamedTuple

from monarch.telemetry._export.metric_names import ADVERBS, BY_NAME
from monarch.telemetry._export.metric_totals import typed
from monarch.telemetry._tables.metrics import METRIC_GAUGES, METRIC_HISTOGRAMS, METRIC_SUMS

SCOPE = "monarch"
# A window of endpoint_stats has 10 seconds, and is complete a second after its end.
_LAG_US = 12_000_000
# Upper bounds of the latencies of endpoint_stats, in microseconds. Rows have only buckets with calls: series have all of them.
LATENCY_BOUNDS_US = tuple(1 << power for power in range(4, 27))
# The most actors, or pairs of a sender and a receiver, with their own points in a window.
_MOST_ACTORS = 32
# Attributes of a point, and its value.
_Attributes = Mapping[str, Any]
_NONE: _Attributes = {}
_Histogram = tuple[list[float], list[int], float, float | None]


class Window(NamedTuple):
    """A window of time, in microseconds since the epoch, and the start of what is cumulative."""

    since_us: int
    until_us: int
    started_us: int = 0


class Points:
    """Points of metrics, by the names of `metric_names`: one for each series, whatever the number of rows it comes from."""

    def __init__(self, window: Window, resource: Mapping[str, Any]) -> None:
        self._window = window
        self._resource = dumps(resource, sort_keys=True)
        # By name and attributes as JSON; of a sum also whether it is cumulative.
        self._gauges: dict[tuple[str, str], float] = {}
        self._sums: dict[tuple[str, str], tuple[float, bool]] = {}
        self._histograms: dict[tuple[str, str], _Histogram] = {}

    def gauge(self, name: str, value: float | None, attributes: _Attributes = _NONE) -> None:
        """The value at the end of the window; of several the last one counts."""
        if value is not None:
            self._gauges[name, dumps(attributes, sort_keys=True)] = value

    def count(self, name: str, amount: float | None, attributes: _Attributes = _NONE, *, cumulative: bool = False) -> None:
        """Adds an amount of the window, or one since the start."""
        if amount is not None:
            key = (name, dumps(attributes, sort_keys=True))
            self._sums[key] = self._sums.get(key, (0, False))[0] + amount, cumulative

    def histogram(self, name: str, found: _Histogram, attributes: _Attributes = _NONE) -> None:
        """Adds bounds, counts (one more than bounds), sum and, where it is known, the greatest value."""
        key = (name, dumps(attributes, sort_keys=True))
        known = self._histograms.get(key)
        self._histograms[key] = found if known is None else merged((known, found))

    def batches(self) -> dict[str, Any]:
        """By the name of the table, a `pyarrow.RecordBatch` where there are rows."""
        from monarch.telemetry._arrow import pa

        gauges = [{**self._row(key), "start_timestamp_us": None, **typed("value", value)} for key, value in self._gauges.items()]
        sums = [
            {
                **self._row(key),
                "temporality": "cumulative" if cumulative else "delta",
                "start_timestamp_us": self._window.started_us if cumulative else self._window.since_us,
                "is_monotonic": True,
                **typed("sum", amount),
            }
            for key, (amount, cumulative) in self._sums.items()
        ]
        histograms = [
            {
                **self._row(key),
                "count": sum(counts),
                **typed("sum", total),
                **typed("min", None),
                **typed("max", most),
                "bounds_json": dumps(bounds),
                "bucket_counts_json": dumps(counts),
            }
            for key, (bounds, counts, total, most) in self._histograms.items()
        ]
        found = {METRIC_GAUGES: gauges, METRIC_SUMS: sums, METRIC_HISTOGRAMS: histograms}
        return {table.name: pa.RecordBatch.from_pylist(rows, schema=table.schema()) for table, rows in found.items() if rows}

    def _row(self, key: tuple[str, str]) -> dict[str, Any]:
        name, attributes = key
        return {
            "name": name,
            "timestamp_us": self._window.until_us,
            "start_timestamp_us": self._window.since_us,
            "scope_name": SCOPE,
            "unit": BY_NAME[name].unit,
            "temporality": "delta",
            "attributes_json": attributes,
            "resource_attributes_json": self._resource,
        }


class Selection(NamedTuple):
    """Columns of a table, all if none are named, of the rows whose `time` is in the window, or of all rows."""

    columns: tuple[str, ...] = ()
    time: str = ""


class Source(NamedTuple):
    """A statement with places for `since` and `until`, and what makes points of the rows of its answer."""

    name: str
    sql: str
    points: Callable[[Points, Sequence[dict[str, Any]]], None]
    # Microseconds by which the window of the statement is earlier, because of late rows.
    lag_us: int = 0
    # For a statement that only selects rows of one table: its columns (none: all), and the column of the time that the window bounds.
    selects: Selection | None = None

    def statement(self, window: Window) -> str:
        """The statement for a window; times are numbers, so that nothing has to be quoted."""
        return self.sql.format(since=int(window.since_us) - self.lag_us, until=int(window.until_us) - self.lag_us)

    def selected(self, schema: Any, batches: Sequence[Any], window: Window) -> Any:
        """The answer of the statement where it only selects, without a plan, in the order of the batches; None for another one."""
        if self.selects is None:
            return None
        from monarch.telemetry._arrow import pa, pc

        table = pa.Table.from_batches(batches, schema=schema)
        if self.selects.time:
            times = table.column(self.selects.time)
            since, until = (pa.scalar(int(us) - self.lag_us, pa.int64()) for us in (window.since_us, window.until_us))
            table = table.filter(pc.and_(pc.greater_equal(times, since), pc.less(times, until)))
        return table.select(self.selects.columns) if self.selects.columns else table


def measure(ask: Callable[[str], Any], window: Window, resource: Mapping[str, Any]) -> dict[str, Any]:
    """The rows of all metrics, by the name of the table. `ask` gives the answer of a statement as a `pyarrow.Table`."""
    points = Points(window, resource)
    for source in SOURCES:
        source.points(points, ask(source.statement(window)).to_pylist())
    return points.batches()


def computed(tables: Mapping[str, Any], window: Window, resource: Mapping[str, Any]) -> dict[str, Any]:
    """The same of answers that are there already: `pyarrow.Table` by the name of the source. `KeyError` for an unknown name."""
    points = Points(window, resource)
    for name, table in tables.items():
        BY_SOURCE[name].points(points, table.to_pylist())
    return points.batches()


def process_memory(processes: Mapping[str, int], host: str, window: Window, resource: Mapping[str, Any]) -> dict[str, Any]:
    """`process.memory.rss_bytes` and `process.memory.vm_bytes` of processes of this host: their numbers, by the name of the proc.

    A process that has ended meanwhile has no row.
    """
    points, page = Points(window, resource), sysconf("SC_PAGE_SIZE")
    for proc, pid in processes.items():
        try:
            with open(f"/proc/{pid}/statm", encoding="ascii") as file:
                pages = [int(one) for one in file.read().split()[:2]]
        except OSError:
            continue
        if len(pages) == 2:
            points.gauge("process.memory.vm_bytes", pages[0] * page, {"host": host, "proc": proc})
            points.gauge("process.memory.rss_bytes", pages[1] * page, {"host": host, "proc": proc})
    return points.batches()


def _in(column: str, table: str = "") -> str:
    name = f"{table}.{column}" if table else column
    return f"{name} >= {{since}} AND {name} < {{until}}"


def _endpoints(points: Points, rows: Sequence[dict[str, Any]]) -> None:
    for row in rows:
        here = {"mesh": row["mesh_name"], "endpoint": row["endpoint"]}
        calls, errors, adverb = row["count"], row["errors"], row["adverb"]
        size = row["bytes_in"] + row["bytes_out"]
        if row["side"] == "server":
            points.count("py_messages_handled", calls, here)
            points.count("actor.messages_received", calls, here)
            points.count("actor.message_receive_errors", errors, here)
            points.histogram("actor.message_handler_duration.ns", _latency(row, 1000), here)
            continue
        if adverb in ADVERBS:
            points.count(f"endpoint_{adverb}_throughput", calls, here)
            points.count(f"endpoint_{adverb}_error", errors, here)
            if adverb != "broadcast":
                points.histogram(f"endpoint_{adverb}_latency_us_histogram", _latency(row, 1), here)
        if adverb != "broadcast":
            points.histogram("message.e2e_latency.us", _latency(row, 1))
        points.histogram("endpoint_message_size", ([], [calls], size, None), here)
        points.histogram("channel.remote_message_send_size", ([], [calls], row["bytes_out"], None))
        # A call other than a broadcast has an answer, which is a message too.
        points.count("channel.throughput.messages", calls if adverb == "broadcast" else 2 * calls)


def _latency(row: dict[str, Any], factor: int) -> _Histogram:
    """The buckets of a row of endpoint_stats, in units of which a microsecond has `factor`; without buckets the count alone."""
    buckets: dict[float, int] = {}
    try:
        for upper, calls in loads(row["latency_buckets_json"]):
            bound = float("inf") if upper is None else float(upper) * factor
            buckets[bound] = buckets.get(bound, 0) + int(calls)
    except (ValueError, TypeError, OverflowError, RecursionError):
        buckets.clear()
    bounds = sorted(bound for bound in buckets if isfinite(bound))
    series = [float(bound * factor) for bound in LATENCY_BOUNDS_US]
    if {*bounds} <= {*series} and (bounds or not row["count"]):
        bounds = series
    counts = [buckets.get(bound, 0) for bound in bounds]
    # Calls in no bucket are above the last bound.
    above = row["count"] - sum(counts)
    if any(one < 0 for one in (above, *counts)):
        bounds, counts, above = [], [], row["count"]
    return bounds, [*counts, above], row["latency_sum_us"] * factor, row["latency_max_us"] * factor if row["count"] else None


def merged(histograms: Iterable[_Histogram]) -> _Histogram:
    """One histogram of several, with the bounds of all of them. A count belongs to the upper bound of its bucket."""
    buckets: dict[float, int] = {}
    above, total, most = 0, 0, None
    for bounds, counts, added, greatest in histograms:
        for bound, count in zip(bounds, counts, strict=False):
            buckets[bound] = buckets.get(bound, 0) + count
        above += counts[-1]
        total += added
        if greatest is not None:
            most = greatest if most is None else max(most, greatest)
    ordered = sorted(buckets)
    return ordered, [*(buckets[bound] for bound in ordered), above], total, most


def _messages(points: Points, rows: Sequence[dict[str, Any]]) -> None:
    """The pairs of actors with the most messages have points of their own, the other messages one without attributes."""
    others = rows[0]["all_posts"] - sum(row["posts"] for row in rows) if rows else 0
    weight = max(rows[0]["weight"] or 1, 1) if rows else 1
    for row in rows:
        pair = {"actor_id": str(row["from_actor_id"]), "dest_actor_id": str(row["to_actor_id"])}
        points.count("mailbox.posts", _weighted(row["posts"], weight), pair)
    if others or not rows:
        points.count("mailbox.posts", _weighted(others, weight))


def _weighted(posts: int, weight: float) -> int:
    return posts if weight <= 1 else round(posts * weight)


def _of_actors(name: str) -> Callable[[Points, Sequence[dict[str, Any]]], None]:
    """Points of rows of `_busiest`: one of each actor, or pair, and one without attributes of the others."""

    def points(points: Points, rows: Sequence[dict[str, Any]]) -> None:
        is_gauge = BY_NAME[name].kind == "gauge"
        busy = [row for row in rows if row["amount"]]
        for row in busy:
            actors = {key: str(row[key]) for key in _ACTORS if row.get(key) is not None}
            (points.gauge if is_gauge else points.count)(name, row["amount"], actors)
        others = rows[0]["whole"] - sum(row["amount"] for row in busy) if rows else 0
        if is_gauge and rows and not busy:
            points.gauge(name, 0)
        elif is_gauge and others:
            points.gauge(name, others)
        elif not is_gauge and (others or not busy):
            points.count(name, others)

    return points


_ACTORS = ("actor_id", "dest_actor_id")


def _busiest(rows: str) -> str:
    """The statement of the actors, or pairs, of these rows with the largest amounts, and what all have as `whole`."""
    return f"SELECT *, sum(amount) OVER () AS whole FROM ({rows}) ORDER BY amount DESC, actor_id LIMIT {_MOST_ACTORS}"


def _links(points: Points, rows: Sequence[dict[str, Any]]) -> None:
    for row in rows:
        here = {"from": row["from_host"], "to": row["to_host"]}
        points.gauge("channel.connections", row["up"], here)
        points.gauge("channel.latency.us", row["rtt_us"], here)
        points.count("channel.reconnections", row["reconnects"], here, cumulative=True)
        # Each connection that was restored had been lost before.
        points.count("channel.errors", None if row["reconnects"] is None else row["reconnects"] + row["down"], here, cumulative=True)
        points.count("channel.throughput.bytes", row["bytes_out"], here, cumulative=True)


def _procs(points: Points, rows: Sequence[dict[str, Any]]) -> None:
    for row in rows:
        points.gauge("proc_mesh.active_procs", row["alive"])
        points.count("proc_mesh.proc_failures", row["failed"] or 0)


def _resources(points: Points, rows: Sequence[dict[str, Any]]) -> None:
    """The last row of each host, proc and GPU."""
    last = {(row["host"], row["proc"], row["gpu"]): row for row in rows}
    for (host, proc, gpu), row in last.items():
        if gpu is not None:
            points.gauge("monarch.gpu.utilization", row["gpu_util_pct"], {"host": host, "gpu": gpu})
            points.gauge("monarch.gpu.memory", row["gpu_memory_bytes"], {"host": host, "gpu": gpu})
        elif proc is None:
            points.gauge("monarch.host.cpu", row["cpu_pct"], {"host": host})
            points.gauge("monarch.host.memory", row["rss_bytes"], {"host": host})
        else:
            here = {"host": host, "proc": proc}
            points.gauge("monarch.process.cpu", row["cpu_pct"], here)
            points.gauge("process.memory.rss_bytes", row["rss_bytes"], here)
            points.gauge("monarch.process.threads", row["threads"], here)
            points.gauge("monarch.process.open_files", row["fds"], here)


def _rdma(points: Points, rows: Sequence[dict[str, Any]]) -> None:
    for row in rows:
        here = {"op": row["op"], "path": row["path"]}
        points.count("monarch.rdma.operations", row["ops"], here)
        points.count("monarch.rdma.errors", row["errors"] or 0, here)
        points.count("monarch.rdma.retries", row["retries"], here)
        points.count("monarch.rdma.io", row["bytes"], here)
        most = row["latency_max_us"]
        duration: _Histogram = ([], [row["ops"]], (row["latency_us"] or 0) / 1e6, None if most is None else most / 1e6)
        points.histogram("monarch.rdma.duration", duration, here)


def _buffers(points: Points, rows: Sequence[dict[str, Any]]) -> None:
    for row in rows:
        points.gauge("monarch.rdma.buffers", row["buffers"], {"proc": row["proc"]})
        points.gauge("monarch.rdma.buffer_memory", row["bytes"], {"proc": row["proc"]})


def _files(points: Points, rows: Sequence[dict[str, Any]]) -> None:
    for row in rows:
        points.count("monarch.fs.events", row["events"], {"event": row["event"]})
        points.count("monarch.fs.io", row["bytes"], {"event": row["event"]})


def _mounts(points: Points, rows: Sequence[dict[str, Any]]) -> None:
    for row in rows:
        here = {"host": row["host"], "target": row["target"]}
        points.gauge("monarch.fs.held", row["bytes_held"], here)
        points.count("monarch.fs.faults", row["faults"], here, cumulative=True)


def _hosts(points: Points, rows: Sequence[dict[str, Any]]) -> None:
    for row in rows:
        points.gauge("monarch.job.hosts", row["hosts"], {"state": row["state"]})


def _job(points: Points, rows: Sequence[dict[str, Any]]) -> None:
    for row in rows:
        points.count("monarch.job.events", row["events"], {"event": row["event"], "kind": row["kind"]})


def _failures(points: Points, rows: Sequence[dict[str, Any]]) -> None:
    for row in rows:
        points.count("monarch.job.failures", row["failures"], {"kind": row["kind"]})


def _status(points: Points, rows: Sequence[dict[str, Any]]) -> None:
    tables: dict[str, int] = {}
    for row in rows:
        tables[row["table_name"]] = tables.get(row["table_name"], 0) + row["rows"]
        points.count("monarch.telemetry.dropped", row["dropped"], {"host": row["host"], "table": row["table_name"]}, cumulative=True)
    for table, kept in tables.items():
        points.gauge("monarch.telemetry.rows", kept, {"table": table})


SOURCES: tuple[Source, ...] = (
    Source(
        "endpoint_stats", f"SELECT * FROM endpoint_stats WHERE {_in('window_us')}", _endpoints, _LAG_US, selects=Selection(time="window_us")
    ),
    Source(
        "messages",
        "SELECT from_actor_id, to_actor_id, posts, sum(posts) OVER () AS all_posts,"
        " (SELECT max(sample_weight) FROM telemetry_status WHERE table_name = 'messages') AS weight"
        f" FROM (SELECT from_actor_id, to_actor_id, count(*) AS posts FROM messages WHERE {_in('timestamp_us')}"
        f" GROUP BY from_actor_id, to_actor_id) ORDER BY posts DESC, from_actor_id, to_actor_id LIMIT {_MOST_ACTORS}",
        _messages,
    ),
    Source(
        "undeliverable",
        _busiest(
            "SELECT m.from_actor_id AS actor_id, m.to_actor_id AS dest_actor_id, count(*) AS amount FROM message_status_events f"
            " LEFT JOIN message_status_events a ON a.message_id = f.message_id AND a.status = 'active'"
            " LEFT JOIN messages m ON m.id = f.message_id"
            f" WHERE f.status = 'failed' AND a.message_id IS NULL AND {_in('timestamp_us', 'f')} GROUP BY m.from_actor_id, m.to_actor_id"
        ),
        _of_actors("mailbox.undeliverable_messages"),
    ),
    Source(
        "sent",
        _busiest(
            "SELECT sender_actor_id AS actor_id, count(*) AS amount FROM sent_messages"
            f" WHERE {_in('timestamp_us')} GROUP BY sender_actor_id"
        ),
        _of_actors("actor.messages_sent"),
    ),
    Source(
        "queues",
        _busiest(
            "SELECT n.node_id AS actor_id, n.queue_depth AS amount FROM actor_nodes n JOIN snapshots s ON n.snapshot_id = s.snapshot_id"
            f" WHERE s.snapshot_ts = (SELECT max(snapshot_ts) FROM snapshots WHERE {_in('snapshot_ts')})"
        ),
        _of_actors("actor.message_queue_size"),
    ),
    Source(
        "links",
        "SELECT from_host, to_host, sum(CASE WHEN state = 'up' THEN 1 ELSE 0 END) AS up,"
        " sum(CASE WHEN state = 'up' THEN 0 ELSE 1 END) AS down, max(rtt_us) AS rtt_us, sum(reconnects) AS reconnects,"
        " sum(bytes_out) AS bytes_out FROM links GROUP BY from_host, to_host",
        _links,
    ),
    Source(
        "procs",
        "SELECT sum(CASE WHEN ended_us IS NULL THEN 1 ELSE 0 END) AS alive,"
        f" sum(CASE WHEN {_in('ended_us')} AND (signal IS NOT NULL OR exit_code <> 0) THEN 1 ELSE 0 END) AS failed FROM procs",
        _procs,
    ),
    Source(
        "actor_failures",
        _busiest(
            f"SELECT actor_id, count(*) AS amount FROM actor_status_events WHERE new_status = 'Failed' AND {_in('timestamp_us')}"
            " GROUP BY actor_id"
        ),
        _of_actors("proc_mesh.actor_failures"),
    ),
    # The rows are in the order of time.
    Source(
        "resources",
        f"SELECT * FROM resources WHERE {_in('timestamp_us')} ORDER BY timestamp_us",
        _resources,
        selects=Selection(time="timestamp_us"),
    ),
    Source(
        "rdma_ops",
        "SELECT op, path, count(*) AS ops, count(error) AS errors, sum(retries) AS retries, sum(bytes) AS bytes,"
        " sum(latency_us) AS latency_us, max(latency_us) AS latency_max_us"
        f" FROM rdma_ops WHERE {_in('timestamp_us')} GROUP BY op, path",
        _rdma,
    ),
    Source("rdma_buffers", "SELECT proc, count(*) AS buffers, sum(bytes) AS bytes FROM rdma_buffers GROUP BY proc", _buffers),
    Source(
        "fs_events",
        f"SELECT event, count(*) AS events, sum(bytes) AS bytes FROM fs_events WHERE {_in('timestamp_us')} GROUP BY event",
        _files,
    ),
    Source(
        "mounts", "SELECT host, target, sum(bytes_held) AS bytes_held, sum(faults) AS faults FROM mounts GROUP BY host, target", _mounts
    ),
    Source("hosts", "SELECT state, count(*) AS hosts FROM hosts GROUP BY state", _hosts),
    Source(
        "job_events",
        f"SELECT event, kind, count(*) AS events FROM job_events WHERE {_in('timestamp_us')} GROUP BY event, kind",
        _job,
    ),
    Source(
        "failures",
        f"SELECT kind, count(*) AS failures FROM failures WHERE first_cause AND {_in('timestamp_us')} GROUP BY kind",
        _failures,
    ),
    Source(
        "telemetry_status",
        "SELECT host, table_name, rows, dropped FROM telemetry_status",
        _status,
        selects=Selection(("host", "table_name", "rows", "dropped")),
    ),
)
BY_SOURCE = {one.name: one for one in SOURCES}
