"""The dashboard API: the job in numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from monarch.telemetry._http import dashboard_models as models
from monarch.telemetry._http.calls import Call, Handler
from monarch.telemetry._http.problems import Problem
from monarch.telemetry._http.statements import ACTORS, CLIENT, RUNTIME, SERVICES

# The health of an actor by its status, from 0 to 100. Any other status is a transition.
_HEALTH = {"idle": 100, "processing": 80, "client": 50, "unknown": 50, "stopped": 20, "failed": 0}
_TRANSITIONAL = 30
_NAMED, _PAIRS, _ENDPOINTS = 100, 100, 1_000
BUCKETS, MOST_BUCKETS = 60, 1_000
_BY_ENDPOINT = f"SELECT endpoint, count(*) AS total FROM messages GROUP BY endpoint ORDER BY total DESC, endpoint LIMIT {_ENDPOINTS}"
_ENDS = ("failed", "stopped")


def health_score(by_status: Mapping[str, int]) -> float:
    """The mean over actors; 100 without actors."""
    total = sum(by_status.values())
    if not total:
        return 100.0
    return round(sum(_HEALTH.get(status.lower(), _TRANSITIONAL) * count for status, count in by_status.items()) / total, 2)


_EVENTS = "SELECT status, count(*) AS events FROM message_status_events GROUP BY status"


def _lifecycle(rows: list[dict[str, Any]]) -> tuple[models.Lifecycle, int]:
    """Messages by their last status, and all of them, of the rows of `_EVENTS`.

    Each message has one event for each status that it had, so that differences of counts are the messages that stayed in one. Older events
    may be gone, and a difference is at least 0 then.
    """
    events = {str(row["status"]).lower(): int(row["events"]) for row in rows}
    queued, active = events.get("queued", 0), events.get("active", 0)
    complete, failed = events.get("complete", 0), events.get("failed", 0)
    found: models.Lifecycle = {
        "queued": max(queued - active, 0),
        "active": max(active - complete - failed, 0),
        "completed": complete,
        "failed": failed,
    }
    return found, sum(events.values())


def summary(call: Call) -> models.SummaryAnswer:
    """`GET /api/summary`. The meshes of the runtime's own actors are not counted."""
    meshes, actors, statuses, endpoints, actor_events, received_ones = (
        table.to_pylist()
        for table in call.at_once(
            "SELECT count(*) AS total, sum(CASE WHEN class = 'Host' THEN 1 ELSE 0 END) AS hosts,"
            " sum(CASE WHEN class = 'Proc' THEN 1 ELSE 0 END) AS procs,"
            f" sum(CASE WHEN class = '{CLIENT}' THEN 1 ELSE 0 END) AS clients FROM meshes"
            f" WHERE NOT class {RUNTIME} AND id NOT IN ({SERVICES})",
            f"SELECT latest_status, count(*) AS actors FROM ({ACTORS}) GROUP BY latest_status ORDER BY latest_status",
            _EVENTS,
            _BY_ENDPOINT,
            "SELECT count(*) AS events, min(timestamp_us) AS first, max(timestamp_us) AS last,"
            " min(CASE WHEN new_status = 'Failed' THEN timestamp_us END) AS onset FROM actor_status_events",
            "SELECT count(*) AS messages, min(timestamp_us) AS first, max(timestamp_us) AS last FROM messages",
        )
    )
    (kinds,), (times,), (received,) = meshes, actor_events, received_ones
    hosts, procs, clients, total = (int(kinds[name] or 0) for name in ("hosts", "procs", "clients", "total"))
    by_status = {str(row["latest_status"]): int(row["actors"]) for row in actors}
    lifecycle, message_events = _lifecycle(statuses)
    ended = _ended(call) if any(status.lower() in ("failed", "stopped") for status in by_status) else {}
    starts = [one["first"] for one in (times, received) if one["first"] is not None]
    ends = [one["last"] for one in (times, received) if one["last"] is not None]
    messages = int(received["messages"])
    finished = lifecycle["completed"]
    return {
        "mesh_counts": {"total": total},
        "hierarchy_counts": {"host_meshes": hosts, "proc_meshes": procs, "actor_meshes": total - hosts - procs - clients},
        "actor_counts": {"total": sum(by_status.values()), "by_status": by_status},
        "message_counts": {
            "total": messages,
            "by_status": {name: int(count) for name, count in _counts(lifecycle).items()},
            "by_endpoint": {str(row["endpoint"] or ""): int(row["total"]) for row in endpoints},
            "delivery_rate": min(finished / messages, 1.0) if messages else 1.0,
        },
        "errors": {
            "failed_actors": ended.get("failed", []),
            "stopped_actors": ended.get("stopped", []),
            "failed_messages": lifecycle["failed"],
        },
        "timeline": {
            "start_us": min(starts, default=None),
            "end_us": max(ends, default=None),
            "failure_onset_us": times["onset"],
            "total_status_events": int(times["events"]),
            "total_message_events": message_events,
        },
        "health_score": health_score(by_status),
    }


def _counts(lifecycle: models.Lifecycle) -> dict[str, int]:
    """By the statuses of the table."""
    return {
        "queued": lifecycle["queued"],
        "active": lifecycle["active"],
        "complete": lifecycle["completed"],
        "failed": lifecycle["failed"],
    }


def _ended(call: Call) -> dict[str, list[models.FailedActor]]:
    """The actors that failed, and those that stopped, the latest first."""
    found: dict[str, list[models.FailedActor]] = {}
    tables = call.at_once(
        *(
            "SELECT id, full_name, display_name, mesh_id, status_timestamp_us, status_reason"
            f" FROM ({ACTORS}) WHERE lower(latest_status) = '{status}' ORDER BY status_timestamp_us DESC NULLS LAST, id LIMIT {_NAMED}"
            for status in _ENDS
        )
    )
    for status, table in zip(_ENDS, tables, strict=True):
        found[status] = [
            {
                "actor_id": str(row["id"]),
                "full_name": row["full_name"],
                "display_name": row["display_name"],
                "mesh_id": str(row["mesh_id"]),
                "timestamp_us": row["status_timestamp_us"],
                "reason": row["status_reason"],
            }
            for row in table.to_pylist()
        ]
    return found


def message_stats(call: Call) -> models.MessageStatsAnswer:
    """`GET /api/message-stats`. Endpoints are counted by their statistics where there are any: these are exact, and messages a sample."""
    events, rows, exact, pairs = (
        table.to_pylist()
        for table in call.at_once(
            _EVENTS,
            _BY_ENDPOINT,
            "SELECT endpoint, sum(count) AS calls, sum(errors) AS errors FROM endpoint_stats WHERE side = 'server' GROUP BY endpoint",
            "SELECT from_actor_id, to_actor_id, count(*) AS total FROM messages GROUP BY from_actor_id, to_actor_id"
            f" ORDER BY total DESC, from_actor_id, to_actor_id LIMIT {_PAIRS}",
        )
    )
    lifecycle, _ = _lifecycle(events)
    totals: dict[str | None, list[int]] = {row["endpoint"]: [int(row["total"]), 0] for row in rows}
    for row in exact:
        # A call is counted at its end.
        known = totals.setdefault(row["endpoint"], [0, 0])
        known[:] = [max(known[0], int(row["calls"])), int(row["calls"]) - int(row["errors"])]
    if not exact:
        for row in call.rows(
            "SELECT m.endpoint, count(*) AS completed FROM messages m JOIN message_status_events e ON e.message_id = m.id"
            " WHERE e.status = 'complete' GROUP BY m.endpoint"
        ):
            totals.setdefault(row["endpoint"], [int(row["completed"]), 0])[1] = int(row["completed"])
    return {
        "lifecycle": lifecycle,
        "endpoints": [
            {"endpoint": name, "total": total, "completed": completed}
            for name, (total, completed) in sorted(totals.items(), key=lambda one: (-one[1][0], one[0] or ""))
        ],
        "pairs": [
            {"from_actor_id": str(row["from_actor_id"]), "to_actor_id": str(row["to_actor_id"]), "total": int(row["total"])}
            for row in pairs
        ],
    }


def message_activity(call: Call) -> models.MessageActivityAnswer:
    """`GET /api/message-activity`. Buckets without messages are there too."""
    given: Mapping[str, Any] = call.parameters
    buckets = given.get("buckets", BUCKETS)
    if not 0 < buckets <= MOST_BUCKETS:
        raise Problem.bad_request(f"buckets is from 1 to {MOST_BUCKETS:,}")
    start, end = given.get("start_us"), given.get("end_us")
    if start is None or end is None:
        known = call.rows("SELECT min(timestamp_us) AS first, max(timestamp_us) AS last FROM messages")[0]
        start = known["first"] if start is None else start
        end = known["last"] + 1 if end is None and known["last"] is not None else end
    if start is None or end is None or start >= end:
        return {"start_us": start, "end_us": end, "total": 0, "buckets": []}
    width = -(-(end - start) // buckets)
    rows = call.rows(
        f"SELECT (timestamp_us - {start}) / {width} AS bucket, count(*) AS messages FROM messages"
        f" WHERE timestamp_us >= {start} AND timestamp_us < {end} GROUP BY bucket"
    )
    counts = {int(row["bucket"]): int(row["messages"]) for row in rows}
    return {
        "start_us": start,
        "end_us": end,
        "total": sum(counts.values()),
        "buckets": [{"start_us": start + number * width, "count": counts.get(number, 0)} for number in range(-(-(end - start) // width))],
    }


HANDLERS: dict[str, Handler] = {
    "api_summary": summary,
    "api_message_stats": message_stats,
    "api_message_activity": message_activity,
}
