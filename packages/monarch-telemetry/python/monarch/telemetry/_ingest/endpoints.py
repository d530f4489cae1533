"""`endpoint_stats`: exact counts of calls by window of ten seconds, at the receiver and at the caller.

At the receiver, latency is the time of the endpoint itself. At the caller it is that from sending to the last answer it waits for, of the
process that calls; a message without a waiting caller has none.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from monarch.telemetry._arrow import pa, pc
from monarch.telemetry._ingest.broadcasts import FIRST
from monarch.telemetry._ingest.ids import U64, mixed_columns
from monarch.telemetry._ingest.rows import Rows, text
from monarch.telemetry._tables.facts import ENDPOINT_STATS

WINDOW_US = 10_000_000
# The most calls of processes of this host without an end; older ones are dropped.
_MOST_OPEN = 100_000
# Upper bounds of latencies in microseconds: powers of two, from 16 us to 67 s.
BOUNDS = tuple(1 << power for power in range(4, 27))


class Key(NamedTuple):
    window: int
    side: str
    mesh: int
    method: str
    adverb: str


class Sums:
    """Of one key."""

    __slots__ = ("buckets", "bytes_in", "bytes_out", "count", "errors", "latency", "longest")

    def __init__(self) -> None:
        self.count = self.errors = self.latency = self.longest = self.bytes_in = self.bytes_out = 0
        self.buckets: dict[int, int] = {}

    def add(self, other: Sums) -> None:
        """Counts what another one has counted."""
        self.count += other.count
        self.errors += other.errors
        self.latency += other.latency
        self.longest = max(self.longest, other.longest)
        self.bytes_in += other.bytes_in
        self.bytes_out += other.bytes_out
        for bound, count in other.buckets.items():
            self.buckets[bound] = self.buckets.get(bound, 0) + count


class EndpointStats:
    """Sums of the windows that are open. Not for several threads at once."""

    def __init__(self) -> None:
        self._open: dict[Key, Sums] = {}
        # Calls without an end, as a table of columns.
        self._calls: Any = None

    def add(self, rows: Mapping[str, Rows]) -> None:
        """Counts new events, which `Broadcasts` has marked."""
        if "message.handled" in rows:
            handled = rows["message.handled"]
            adverbs = pc.if_else(pc.equal(handled["call"], U64[0]), "broadcast", "call")
            self._count("server", handled, adverbs, pc.divide(handled["duration"], 1000), handled["failed"])
        if "message.received" in rows:
            received = rows["message.received"]
            adverbs = pc.if_else(pc.equal(received["call"], U64[0]), "broadcast", "call")
            self._size("server", received, adverbs, "bytes_in")
        sent = [rows[kind] for kind in ("message.sent", "cast.sent") if kind in rows]
        if sent or "call.done" in rows:
            self._called(sent, rows.get("call.done"))

    def _called(self, sent: list[Rows], done: Rows | None) -> None:
        names = ("proc", "call", "mesh", "method", "us", "bytes", FIRST)
        tables = [pa.table([one[name] for name in names], list(names)) for one in sent]
        if self._calls is not None:
            tables.insert(0, self._calls)
        calls = pa.concat_tables(tables).combine_chunks() if tables else None
        alone = None if calls is None else calls.filter(pc.equal(calls["call"], U64[0]))
        if alone is not None and alone.num_rows:
            every = _rows(alone)
            # A call to several receivers is sent several times, too.
            rows = every.where(every[FIRST])
            if rows.count:
                none = pa.repeat(pa.scalar(0, pa.uint64()), rows.count)
                self._count("client", rows, pa.repeat(pa.scalar("broadcast"), rows.count), none, none)
            self._size("client", every, pa.repeat(pa.scalar("broadcast"), every.count), "bytes_out")
        calls = None if calls is None else calls.filter(pc.not_equal(calls["call"], U64[0]))
        if done is not None and calls is not None and calls.num_rows:
            calls = self._matched(calls, done)
        self._calls = None if calls is None or not calls.num_rows else calls.slice(max(0, calls.num_rows - _MOST_OPEN))

    def _matched(self, calls: Any, done: Rows) -> Any:
        """Counts the calls that have ended; the others are given back."""
        place = pc.index_in(
            mixed_columns(calls["proc"], calls["call"]).combine_chunks(), value_set=mixed_columns(done["proc"], done["call"])
        )
        has_ended = pc.is_valid(place)
        ended = calls.filter(has_ended).append_column("place", place.filter(has_ended))
        if not ended.num_rows:
            return calls
        # A call to several receivers is sent several times.
        sums = [("us", "min"), ("bytes", "sum"), ("mesh", "min"), ("method", "min")]
        whole = ended.group_by("place", use_threads=False).aggregate(sums)
        at = _chunk(whole["place"])
        end, failed, stream, targets = (done[name].take(at) for name in ("us", "failed", "stream", "targets"))
        latency = pc.max_element_wise(pc.subtract(end, _chunk(whole["us_min"])), pa.scalar(0, pa.int64())).cast(pa.uint64())
        adverbs = pc.if_else(pc.equal(stream, U64[1]), "stream", pc.if_else(pc.greater(targets, U64[1]), "call", "call_one"))
        columns = {"mesh": whole["mesh_min"], "method": whole["method_min"], "bytes": whole["bytes_sum"]}
        rows = Rows(whole.num_rows, {"us": end, **{name: _chunk(column) for name, column in columns.items()}})
        self._count("client", rows, adverbs, latency, failed)
        self._size("client", rows, adverbs, "bytes_out")
        return calls.filter(pc.invert(has_ended))

    def _count(self, side: str, rows: Rows, adverbs: Any, latency: Any, failed: Any) -> None:
        buckets = pc.bit_wise_and(pc.cast(pc.ceil(pc.log2(pc.max_element_wise(latency, pa.scalar(1, pa.uint64())))), pa.uint64()), 63)
        table = pa.table(
            [_windows(rows), rows["mesh"], text(rows["method"]), adverbs, buckets, latency, failed],
            ["window", "mesh", "method", "adverb", "bucket", "latency", "failed"],
        )
        keys = ["window", "mesh", "method", "adverb", "bucket"]
        summed = table.group_by(keys, use_threads=False).aggregate(
            [("latency", "sum"), ("latency", "max"), ("failed", "sum"), ([], "count_all")]
        )
        columns = [summed.column(name).to_pylist() for name in (*keys, "latency_sum", "latency_max", "failed_sum", "count_all")]
        for window, mesh, method, adverb, bucket, total, longest, errors, count in zip(*columns, strict=True):
            sums = self._open.setdefault(Key(window, side, mesh, method, adverb), Sums())
            sums.count += count
            sums.errors += errors
            sums.latency += total
            sums.longest = max(sums.longest, longest)
            bound = min(max(1 << bucket, BOUNDS[0]), BOUNDS[-1])
            sums.buckets[bound] = sums.buckets.get(bound, 0) + count

    def _size(self, side: str, rows: Rows, adverbs: Any, field: str) -> None:
        table = pa.table(
            [_windows(rows), rows["mesh"], text(rows["method"]), adverbs, rows["bytes"]], ["window", "mesh", "method", "adverb", "b"]
        )
        summed = table.group_by(["window", "mesh", "method", "adverb"], use_threads=False).aggregate([("b", "sum")])
        columns = [summed.column(name).to_pylist() for name in ("window", "mesh", "method", "adverb", "b_sum")]
        for window, mesh, method, adverb, size in zip(*columns, strict=True):
            sums = self._open.setdefault(Key(window, side, mesh, method, adverb), Sums())
            setattr(sums, field, getattr(sums, field) + size)

    def forget(self, proc: int) -> None:
        """A process has ended: its calls have no end."""
        if self._calls is not None:
            left = self._calls.filter(pc.not_equal(self._calls["proc"], pa.scalar(proc, pa.uint64()))).combine_chunks()
            self._calls = left if left.num_rows else None

    def __len__(self) -> int:
        """Calls without an end."""
        return 0 if self._calls is None else int(self._calls.num_rows)

    def closed(self, now_us: int, names: Mapping[int, str]) -> Any:
        """The rows of windows that ended at least a second ago, which are counted no more; None where there is none."""
        over = [key for key in self._open if key.window + WINDOW_US + 1_000_000 <= now_us]
        return _batch([(key, self._open.pop(key)) for key in over], names) if over else None

    def current(self, names: Mapping[int, str]) -> Any:
        """The rows of the windows that are open, as far as they are counted."""
        return _batch(self._open.items(), names)


def _windows(rows: Rows) -> Any:
    return pc.multiply(pc.divide(rows["us"], WINDOW_US), WINDOW_US)


def _rows(table: Any) -> Rows:
    table = table.combine_chunks()
    return Rows(table.num_rows, {name: _chunk(table.column(name)) for name in table.column_names})


def _chunk(column: Any) -> Any:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def _batch(items: Iterable[tuple[Key, Sums]], names: Mapping[int, str]) -> Any:
    """Meshes with the same name are one row, as a job that makes meshes all the time has few names."""
    named: dict[tuple[int, str, str, str, str], Sums] = {}
    for key, sums in items:
        named.setdefault((key.window, key.side, names.get(key.mesh, ""), key.method, key.adverb), Sums()).add(sums)
    rows = [
        {
            "window_us": window,
            "side": side,
            "mesh_name": mesh,
            "endpoint": method,
            "adverb": adverb,
            "count": sums.count,
            "errors": sums.errors,
            "latency_sum_us": sums.latency,
            "latency_max_us": sums.longest,
            "latency_buckets_json": json.dumps(sorted(sums.buckets.items())),
            "bytes_in": sums.bytes_in,
            "bytes_out": sums.bytes_out,
        }
        for (window, side, mesh, method, adverb), sums in sorted(named.items(), key=lambda item: item[0])
    ]
    return pa.RecordBatch.from_pylist(rows, schema=ENDPOINT_STATS.schema())
