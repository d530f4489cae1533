"""The dashboard API: lists that come by pages: logs, metrics, stored stacks, spans and hosts.

A cursor is the place after the last row of a page, in the order of the list. It stays good while rows come and go.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from typing import Any, cast

from monarch.telemetry._http.calls import Call, Handler, Reply
from monarch.telemetry._http.dashboard_api import equals, limit, where
from monarch.telemetry._http.json_parts import batches, document, reply
from monarch.telemetry._http.json_rows import coverage, like, text
from monarch.telemetry._http.problems import Problem

ROWS = 200
_LONGEST = 2_048
# Rows of resources that are older than the last one by more than this are out of date; a row is added every 10 s.
_NOW_US = 20_000_000
_MOST = 1 << 64


def paged(call: Call, sql: str, keys: Sequence[str], *, descending: bool, follow: bool = False) -> Reply:
    """A page of a statement in the order of `keys`, columns that together are different in each row and never null.

    With `follow` the last page has a cursor too: rows that come later follow it.
    """
    most = limit(call, ROWS)
    given = call.parameters.get("cursor")
    after = None if given is None else _decoded(given, len(keys))
    condition = "" if after is None else f" WHERE {_after(keys, after, '<' if descending else '>')}"
    order = ", ".join(f"{key}{' DESC' if descending else ''}" for key in keys)
    answer = call.ask(f"SELECT * FROM ({sql}){condition} ORDER BY {order} LIMIT {most + 1}")
    table = answer.table.slice(0, most)
    cursor = None
    if table.num_rows and (answer.table.num_rows > most or follow):
        last = table.slice(table.num_rows - 1, 1).to_pylist()[0]
        cursor = _encoded([last[key] for key in keys])
    elif follow:
        cursor = given
    # Columns for sorting that are not part of a row.
    table = table.drop_columns([name for name in table.schema.names if name.startswith("_")])
    return reply(document({"rows": batches(table, ids_as_text=True)}, {"coverage": coverage(answer.coverage), "cursor": cursor}))


def _after(keys: Sequence[str], values: Sequence[int | str], sign: str) -> str:
    """Rows behind these values."""
    choices: list[str] = []
    for index, (key, value) in enumerate(zip(keys, values, strict=True)):
        equal = [f"{before} = {_literal(its)}" for before, its in zip(keys[:index], values[:index], strict=True)]
        choices.append(f"({' AND '.join([*equal, f'{key} {sign} {_literal(value)}'])})")
    return f"({' OR '.join(choices)})"


def _literal(value: int | str) -> str:
    return text(value) if isinstance(value, str) else str(value)


def _encoded(values: Sequence[int | str]) -> str:
    return base64.urlsafe_b64encode(json.dumps(values).encode()).rstrip(b"=").decode()


def _decoded(cursor: str, count: int) -> list[int | str]:
    try:
        if len(cursor) > _LONGEST:
            raise ValueError
        found = cast("list[Any]", json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))))
        if len(found) != count or not all(type(one) in (int, str) for one in found):
            raise ValueError
        if any(isinstance(one, int) and abs(one) >= _MOST for one in found):
            raise ValueError
    except (ValueError, binascii.Error, TypeError, RecursionError):
        raise Problem.bad_request("this is no cursor of this list") from None
    return found


def _times(call: Call, column: str = "timestamp_us") -> list[str]:
    since, until = call.parameters.get("since_us"), call.parameters.get("until_us")
    return [*([f"{column} >= {since}"] if since is not None else []), *([f"{column} < {until}"] if until is not None else [])]


def _descending(call: Call) -> bool:
    return call.parameters.get("order", "desc") == "desc"


def logs(call: Call) -> Reply:
    """`GET /api/logs`."""
    given = call.parameters
    part = given.get("text")
    conditions = where(
        *_times(call),
        equals("mesh_name", given.get("mesh")),
        equals("rank", given.get("rank")),
        equals("host", given.get("host")),
        equals("proc", given.get("proc")),
        equals("actor_id", given.get("actor_id")),
        equals("stream", given.get("stream")),
        None if given.get("level") is None else f"upper(level) = {text(given['level'].upper())}",
        None if part is None else f"line ILIKE {like(part)}",
    )
    descending = _descending(call)
    return paged(
        call, f"SELECT * FROM logs{conditions}", ("timestamp_us", "seq", "host", "pid"), descending=descending, follow=not descending
    )


_SERIES = "name, timestamp_us, unit, scope_name, attributes_json, resource_attributes_json"


def _value(prefix: str) -> str:
    return f"coalesce({prefix}_f64, CAST({prefix}_i64 AS DOUBLE), CAST({prefix}_u64 AS DOUBLE))"


def metrics(call: Call) -> Reply:
    """`GET /api/metrics`: gauges and sums have a value, histograms a count, a sum and buckets."""
    none = "CAST(NULL AS {}) AS {}"
    plain = ", ".join(none.format(*one) for one in (("BIGINT UNSIGNED", "count"), ("DOUBLE", "min"), ("DOUBLE", "max")))
    buckets = ", ".join(none.format("VARCHAR", name) for name in ("bounds_json", "bucket_counts_json"))
    conditions = where(*_times(call), equals("name", call.parameters.get("name")))
    sources = {
        "gauge": f"SELECT {_SERIES}, 'gauge' AS kind, {_value('value')} AS value, {plain}, {buckets} FROM metric_gauges{conditions}",
        "sum": f"SELECT {_SERIES}, 'sum' AS kind, {_value('sum')} AS value, {plain}, {buckets} FROM metric_sums{conditions}",
        "histogram": f"SELECT {_SERIES}, 'histogram' AS kind, {_value('sum')} AS value, count, {_value('min')} AS min,"
        f" {_value('max')} AS max, bounds_json, bucket_counts_json FROM metric_histograms{conditions}",
    }
    kind = call.parameters.get("kind")
    chosen = [sources[kind]] if kind else list(sources.values())
    descending = _descending(call)
    keys = ("timestamp_us", "name", "kind", "attributes_json", "resource_attributes_json")
    return paged(call, " UNION ALL ".join(chosen), keys, descending=descending, follow=not descending)


def stacks(call: Call) -> Reply:
    """`GET /api/stacks`: stored dumps, or the frames of one, thread by thread."""
    dump = call.parameters.get("dump_id")
    if dump is None:
        descending = _descending(call)
        sql = f"SELECT * FROM pyspy_dumps{where(*_times(call))}"
        return paged(call, sql, ("timestamp_us", "dump_id"), descending=descending, follow=not descending)
    sql = (
        "SELECT f.*, t.thread_name, t.active, t.owns_gil FROM pyspy_frames f LEFT JOIN pyspy_stack_traces t"
        f" ON t.dump_id = f.dump_id AND t.thread_id = f.thread_id WHERE f.dump_id = {text(dump)}"
    )
    return paged(call, sql, ("thread_id", "frame_depth"), descending=False)


def timeline(call: Call) -> Reply:
    """`GET /api/timeline`: spans with their ends; one that has not ended has none."""
    given = call.parameters
    ends = (
        "(SELECT process_id, id, min(timestamp_us) AS entered_us, max(CASE WHEN event_type <> 'enter' THEN timestamp_us END) AS end_us"
        " FROM span_events GROUP BY process_id, id)"
    )
    conditions = where(
        *_times(call, "s.timestamp_us"),
        equals("s.process_id", given.get("process_id")),
        equals("s.name", given.get("name")),
        equals("c.trace_id", given.get("trace_id")),
    )
    sql = (
        "SELECT s.*, e.entered_us, e.end_us, c.trace_id, c.parent_process_id, c.parent_span_id, p.rank, h.name AS host,"
        f" m.given_name AS mesh_name FROM spans s LEFT JOIN {ends} e ON e.process_id = s.process_id AND e.id = s.id"
        " LEFT JOIN span_context c ON c.process_id = s.process_id AND c.span_id = s.id"
        " LEFT JOIN procs p ON p.proc_id = s.process_id LEFT JOIN hosts h ON h.host_id = p.host_id LEFT JOIN meshes m ON m.id = p.mesh_id"
        f"{conditions}"
    )
    descending = _descending(call)
    return paged(call, sql, ("timestamp_us", "process_id", "id"), descending=descending, follow=not descending)


def hosts(call: Call) -> Reply:
    """`GET /api/hosts`: with the procs on each, and what it used last."""
    sql = (
        "SELECT h.*, coalesce(p.num_procs, 0) AS num_procs, coalesce(p.ended_procs, 0) AS ended_procs, r.measured_us, r.cpu_pct,"
        " r.rss_bytes, g.gpu_util_pct FROM hosts h LEFT JOIN (SELECT host_id,"
        " sum(CASE WHEN ended_us IS NULL THEN 1 ELSE 0 END) AS num_procs, sum(CASE WHEN ended_us IS NULL THEN 0 ELSE 1 END) AS ended_procs"
        " FROM procs GROUP BY host_id) p ON p.host_id = h.host_id LEFT JOIN (SELECT host, max(timestamp_us) AS measured_us,"
        " last_value(cpu_pct ORDER BY timestamp_us) AS cpu_pct, last_value(rss_bytes ORDER BY timestamp_us) AS rss_bytes FROM resources"
        " WHERE proc IS NULL AND gpu IS NULL GROUP BY host) r ON r.host = h.name LEFT JOIN (SELECT host, avg(gpu_util_pct) AS gpu_util_pct"
        " FROM resources WHERE gpu IS NOT NULL"
        f" AND timestamp_us > (SELECT max(timestamp_us) FROM resources) - {_NOW_US} GROUP BY host) g ON g.host = h.name"
    )
    return paged(call, sql, ("name", "host_id"), descending=False)


HANDLERS: dict[str, Handler] = {
    "api_logs": logs,
    "api_metrics": metrics,
    "api_stacks": stacks,
    "api_timeline": timeline,
    "api_hosts": hosts,
}
