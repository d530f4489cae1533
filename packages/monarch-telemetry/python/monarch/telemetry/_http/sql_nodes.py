"""The topology of a job from its tables: hosts, procs, actors, their status, and what snapshots and live state add."""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

from monarch.telemetry._asking import Asking
from monarch.telemetry._http import models
from monarch.telemetry._http.json_rows import text
from monarch.telemetry._http.placement import Placement
from monarch.telemetry._http.references import ROOT, Reference, parse
from monarch.telemetry._http.statements import ACTORS, in_last_snapshot
from monarch.telemetry._sql.coverage import Missing
from monarch.telemetry._sql.functions import key
from monarch.telemetry.errors import QueryError, QueryTimeout

Row = dict[str, Any]
_STOPPED = frozenset({"stopped", "failed"})
# The most ended actors that are still in the tables.
RETENTION = 10_000
# The remaining seconds below which optional parts are not requested any more.
_RESERVE = 0.25
_FLIGHT_ROWS = 20
TREE_LINES = 5_000


def instant(us: int | None) -> str | None:
    """A time in microseconds since the epoch as RFC 3339."""
    if us is None:
        return None
    try:
        found = datetime.datetime.fromtimestamp(us // 1_000_000, datetime.UTC).replace(microsecond=us % 1_000_000)
    except (ValueError, OverflowError, OSError):
        return None
    return found.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class _Look:
    """The questions of one request."""

    def __init__(self, engine: Asking, timeout: float) -> None:
        self._engine = engine
        self._deadline = time.monotonic() + timeout
        self.missing: dict[str, Missing] = {}

    @property
    def _remaining(self) -> float:
        return self._deadline - time.monotonic()

    def rows(self, sql: str) -> list[Row]:
        remaining = self._remaining
        if remaining <= 0:
            raise QueryTimeout("there was no answer in time", stage="nodes")
        answer = self._engine.ask(sql, timeout=remaining)
        self.missing.update({one.host: one for one in answer.coverage.missing})
        return answer.table.to_pylist()

    def more(self, sql: str) -> list[Row]:
        """Rows that a node can do without: none where they cannot be had in time."""
        if self._remaining < _RESERVE:
            return []
        try:
            return self.rows(sql)
        except QueryError:
            return []


class SqlNodes:
    """Nodes of a job over its engine. `clock` gives seconds since the epoch. Any thread."""

    def __init__(self, engine: Asking, *, started_by: str = "", clock: Callable[[], float] = time.time) -> None:
        self._engine, self._started_by, self._clock = engine, started_by, clock

    def proc_id(self, reference: str) -> int | None:
        """The number of a proc; None for a reference to anything else."""
        found = parse(reference)
        return found.id if found is not None and found.kind == "proc" else None

    def root(self, *, timeout: float) -> models.NodePayload:
        """The job. `QueryError`."""
        look = _Look(self._engine, timeout)
        hosts = look.rows("SELECT host_id, joined_us FROM hosts ORDER BY name, host_id")
        known = look.more(f"SELECT started_at, started_by FROM root_nodes r WHERE {in_last_snapshot('r')}")
        started = known[0]["started_at"] if known else min((row["joined_us"] for row in hosts), default=None)
        by = known[0]["started_by"] if known else self._started_by
        children = [str(Reference("host", row["host_id"])) for row in hosts]
        properties: models.Root = {
            "Root": {"num_hosts": len(hosts), "started_at": instant(started), "started_by": by, "system_children": []}
        }
        return self._payload(ROOT, properties, children, None)

    def node(self, reference: str, *, timeout: float) -> models.NodePayload | None:
        """A node; None for a reference to nothing. A node that a silent host may have is an error node. `QueryError`."""
        found = parse(reference)
        if found is None:
            return None
        if found.kind == "root":
            return self.root(timeout=timeout)
        look = _Look(self._engine, timeout)
        node = {"host": self._host, "proc": self._proc, "actor": self._actor}[found.kind](look, found.id)
        if node is None and look.missing:
            reasons = "; ".join(f"{one.host}: {one.reason}" for one in look.missing.values())
            error: models.Error = {"Error": {"code": "gateway_timeout", "message": f"hosts did not answer: {reasons}"}}
            return self._payload(found, error, [], None)
        return node

    def _payload(
        self,
        reference: Reference,
        properties: models.Root | models.Host | models.Proc | models.Actor | models.Error,
        children: Sequence[str],
        parent: Reference | None,
    ) -> models.NodePayload:
        return {
            "identity": str(reference),
            "properties": properties,
            "children": list(children),
            "parent": None if parent is None else str(parent),
            "as_of": instant(int(self._clock() * 1e6)) or "",
        }

    # Hosts

    def _host(self, look: _Look, host: int) -> models.NodePayload | None:
        rows = look.rows(f"SELECT name, address, state, reason FROM hosts WHERE host_id = {host}")
        if not rows:
            return None
        row = rows[0]
        procs = look.rows(f"SELECT proc_id, ended_us FROM procs WHERE host_id = {host} ORDER BY started_us, mesh_id, rank")
        used = look.more(
            f"SELECT rss_bytes FROM resources WHERE host = {text(row['name'])} AND proc IS NULL AND gpu IS NULL"
            " ORDER BY timestamp_us DESC LIMIT 1"
        )
        children = [str(Reference("proc", one["proc_id"])) for one in procs]
        system = _system(look, host, "proc")
        properties: models.Host = {
            "Host": {
                "addr": row["address"],
                "num_procs": sum(one["ended_us"] is None for one in procs),
                "system_children": system,
                "memory": {"process_rss_bytes": used[0]["rss_bytes"] if used else None, "process_vm_size_bytes": None},
                "name": row["name"],
                "state": row["state"],
                "reason": row["reason"],
            }
        }
        return self._payload(Reference("host", host), properties, _joined(children, system), ROOT)

    # Procs

    def _proc(self, look: _Look, proc: int) -> models.NodePayload | None:
        rows = look.rows(
            "SELECT p.host_id, p.mesh_id, p.rank, p.pid, p.ended_us, p.exit_reason, p.rss_peak_bytes, m.given_name FROM procs p"
            f" LEFT JOIN meshes m ON m.id = p.mesh_id WHERE p.proc_id = {proc}"
        )
        if not rows:
            return None
        row = rows[0]
        actors = self._actors_of(look, row["mesh_id"], proc)
        known = look.more(
            "SELECT proc_name, is_poisoned, failed_actor_count, stopped_retention_cap FROM proc_nodes p"
            f" WHERE {in_last_snapshot('p')} AND node_id = {proc}"
        )
        snapshot = _first(known)
        own = [str(Reference("actor", one["id"])) for one in actors if one["is_system"]]
        others = [one for one in _system(look, proc, "actor") if one not in own]
        live = [one for one in actors if one["latest_status"].lower() not in _STOPPED]
        failed = sum(one["latest_status"].lower() == "failed" for one in actors)
        properties: models.Proc = {
            "Proc": {
                "proc_name": snapshot.get("proc_name") or f"{row['given_name'] or 'proc'}[{row['rank']}]",
                "num_actors": len(live) + len(others),
                "is_poisoned": bool(snapshot.get("is_poisoned")) or failed > 0,
                "failed_actor_count": max(failed, snapshot.get("failed_actor_count") or 0),
                "stopped_children": [str(Reference("actor", one["id"])) for one in actors if one not in live],
                "stopped_retention_cap": snapshot.get("stopped_retention_cap") or RETENTION,
                "system_children": [*own, *others],
                "debug": self._debug(look, proc, row, [one["id"] for one in actors]),
                "pid": row["pid"],
                "exit_reason": row["exit_reason"],
            }
        }
        children = _joined([str(Reference("actor", one["id"])) for one in actors], others)
        return self._payload(Reference("proc", proc), properties, children, Reference("host", row["host_id"]))

    def _actors_of(self, look: _Look, mesh: int, proc: int) -> list[Row]:
        """The actors of a proc, by name."""
        meshes = look.rows(f"SELECT id, parent_mesh_id, parent_view_json FROM meshes WHERE parent_mesh_id = {mesh} OR id = {mesh}")
        if not meshes:
            return []
        procs = look.rows(f"SELECT proc_id, mesh_id, rank FROM procs WHERE mesh_id = {mesh}")
        ids = ", ".join(str(one["id"]) for one in meshes)
        actors = look.rows(
            f"SELECT id, mesh_id, rank, full_name, latest_status, is_system FROM ({ACTORS}) WHERE mesh_id IN ({ids}) ORDER BY full_name, id"
        )
        placement = Placement(meshes, procs)
        return [one for one in actors if placement.proc(one["id"], one["mesh_id"], one["rank"]) == proc]

    def _debug(self, look: _Look, proc: int, row: Row, actors: Sequence[int]) -> models.ProcDebug:
        ids = ", ".join(map(str, actors)) or "0"
        waiting = look.more(
            "SELECT s.snapshot_id, s.snapshot_ts, sum(n.queue_depth) AS total, max(n.queue_depth) AS most FROM actor_nodes n"
            f" JOIN snapshots s ON s.snapshot_id = n.snapshot_id WHERE n.node_id IN ({ids})"
            " GROUP BY s.snapshot_id, s.snapshot_ts ORDER BY s.snapshot_id DESC LIMIT 1000"
        )
        call = key("live_procs", row["given_name"])
        live = look.more(f"SELECT queue_depth, rss_bytes FROM {call} WHERE proc_id = {proc}") if row["ended_us"] is None else []
        busy = next((one["snapshot_ts"] for one in waiting if one["total"]), None)
        last = _first(waiting)
        now = live[0]["queue_depth"] if live else None
        return {
            "memory": {"process_rss_bytes": live[0]["rss_bytes"] if live else row["rss_peak_bytes"], "process_vm_size_bytes": None},
            "actor_work_queue_depth_total": now if now is not None else last.get("total") or 0,
            "actor_work_queue_depth_max": last.get("most") or 0,
            "actor_work_queue_depth_high_water_mark": max((one["most"] for one in waiting), default=0),
            "last_nonzero_queue_depth_age_ms": None if busy is None else max(int(self._clock() * 1e3) - busy // 1000, 0),
        }

    # Actors

    def _actor(self, look: _Look, actor: int) -> models.NodePayload | None:
        rows = look.rows(f"SELECT * FROM ({ACTORS}) WHERE id = {actor}")
        snapshot = _first(look.more(f"SELECT * FROM actor_nodes n WHERE {in_last_snapshot('n')} AND node_id = {actor}"))
        if not rows and not snapshot:
            return None
        row = _first(rows)
        call = key("live_actors", row.get("mesh_name"))
        live = _first(look.more(f"SELECT * FROM {call} WHERE actor_id = {actor}"))
        status = live.get("actor_status") or row.get("latest_status") or snapshot["actor_status"]
        parent = self._proc_of(look, actor, row)
        properties: models.ActorProperties = {
            "actor_status": status,
            "actor_type": live.get("actor_type") or row.get("mesh_class") or snapshot.get("actor_type") or "",
            "instance_id": str(actor),
            "is_system": bool(live.get("is_system") or row.get("is_system") or snapshot.get("is_system")),
            "messages_processed": live.get("messages_processed") or snapshot.get("messages_processed") or _handled(look, actor),
            "queue_depth": live["queue_depth"] if live else snapshot.get("queue_depth") or 0,
            "total_processing_time_us": live.get("total_processing_time_us") or snapshot.get("total_processing_time_us") or 0,
        }
        if created := instant(row.get("timestamp_us") or snapshot.get("created_at")):
            properties["created_at"] = created
        if handler := snapshot.get("last_message_handler") or _last_handler(look, actor):
            properties["last_message_handler"] = handler
        if status.lower() == "failed" and (failure := _failure(look, actor, row)):
            properties["failure_info"] = failure
        if ordering := _ordering(look, actor):
            properties["inbound_ordering"] = ordering
        if execution := _execution(look, actor, live):
            properties["execution"] = execution
        if recorded := _flight(look, actor):
            properties["flight_recorder"] = recorded
        return self._payload(Reference("actor", actor), {"Actor": properties}, [], parent)

    def _proc_of(self, look: _Look, actor: int, row: Row) -> Reference | None:
        if row:
            mesh = row["mesh_id"]
            meshes = look.more(f"SELECT id, parent_mesh_id, parent_view_json FROM meshes WHERE id = {mesh}")
            above = {one["parent_mesh_id"] or one["id"] for one in meshes} or {mesh}
            procs = look.more(f"SELECT proc_id, mesh_id, rank FROM procs WHERE mesh_id IN ({', '.join(map(str, above))})")
            proc = Placement(meshes, procs).proc(actor, mesh, row["rank"])
            if proc is not None:
                return Reference("proc", proc)
        parents = look.more(f"SELECT parent_id FROM children c WHERE {in_last_snapshot('c')} AND child_id = {actor}")
        return Reference("proc", parents[0]["parent_id"]) if parents else None

    # The tree

    def tree(self, *, timeout: float) -> str:
        """The topology as text. `QueryError`."""
        look = _Look(self._engine, timeout)
        hosts = look.rows("SELECT host_id, name, address, state FROM hosts ORDER BY name, host_id")
        procs = look.rows(
            "SELECT p.proc_id, p.host_id, p.mesh_id, p.rank, p.pid, p.ended_us, p.exit_reason, m.given_name FROM procs p"
            " LEFT JOIN meshes m ON m.id = p.mesh_id ORDER BY m.given_name, p.mesh_id, p.rank"
        )
        meshes = look.rows("SELECT id, parent_mesh_id, parent_view_json FROM meshes")
        actors = look.rows(f"SELECT id, mesh_id, rank, full_name, display_name, latest_status FROM ({ACTORS}) ORDER BY full_name, id")
        placement = Placement(meshes, procs)
        of_proc: dict[int | None, list[Row]] = {}
        for actor in actors:
            of_proc.setdefault(placement.proc(actor["id"], actor["mesh_id"], actor["rank"]), []).append(actor)
        of_host: dict[int, list[Row]] = {}
        for proc in procs:
            of_host.setdefault(proc["host_id"], []).append(proc)
        groups: list[tuple[str, list[Row]]] = [
            (f"{host['name']} ({host['address']}) [{host['state']}]", of_host.pop(host["host_id"], [])) for host in hosts
        ]
        groups += [(f"host {host} [unknown]", theirs) for host, theirs in of_host.items()]
        branches = [
            (title, [(_proc_title(one), [_actor_title(a) for a in of_proc.pop(one["proc_id"], [])]) for one in theirs])
            for title, theirs in groups
        ]
        lost = [_actor_title(actor) for theirs in of_proc.values() for actor in theirs]
        if lost:
            branches.append(("actors whose proc is not known", [(title, []) for title in lost]))
        counted = f"job: {len(hosts)} hosts, {len(procs)} procs, {len(actors)} actors"
        lines = [counted, *(f"! {one.host} did not answer: {one.reason}" for one in look.missing.values()), *_drawn(branches)]
        if len(lines) > TREE_LINES:
            lines[TREE_LINES:] = [f"… {len(lines) - TREE_LINES:,} more lines; POST /v1/query selects"]
        return "\n".join(lines) + "\n"


def _first(rows: list[Row]) -> Row:
    return rows[0] if rows else {}


def _joined(children: list[str], more: list[str]) -> list[str]:
    return [*children, *(one for one in more if one not in set(children))]


def _proc_title(proc: Row) -> str:
    ended = "" if proc["ended_us"] is None else f" [ended: {proc['exit_reason'] or 'unknown'}]"
    return f"{proc['given_name'] or 'proc'}[{proc['rank']}] pid {proc['pid']}{ended}"


def _actor_title(actor: Row) -> str:
    return f"{actor['display_name'] or actor['full_name']} [{actor['latest_status']}]"


def _drawn(branches: Sequence[tuple[str, Sequence[tuple[str, Sequence[str]]]]]) -> list[str]:
    lines: list[str] = []
    for index, (title, inner) in enumerate(branches):
        last = index == len(branches) - 1
        lines.append(f"{'└' if last else '├'}── {title}")
        for number, (name, leaves) in enumerate(inner):
            end, bar = number == len(inner) - 1, " " if last else "│"
            lines.append(f"{bar}   {'└' if end else '├'}── {name}")
            lines += [
                f"{bar}   {' ' if end else '│'}   {'└' if place == len(leaves) - 1 else '├'}── {leaf}" for place, leaf in enumerate(leaves)
            ]
    return lines


def _system(look: _Look, parent: int, kind: str) -> list[str]:
    """The children of a node that belong to the runtime: a client has the number of its host, so their kind decides."""
    rows = look.more(
        "SELECT c.child_id, n.node_kind FROM children c JOIN nodes n ON n.snapshot_id = c.snapshot_id AND n.node_id = c.child_id"
        f" WHERE {in_last_snapshot('c')} AND c.parent_id = {parent} AND c.is_system ORDER BY c.child_sort_key"
    )
    return [str(Reference(kind, one["child_id"])) for one in rows if one["node_kind"] == kind]


def _handled(look: _Look, actor: int) -> int:
    rows = look.more(
        "SELECT count(*) AS handled FROM messages m JOIN message_status_events e ON e.message_id = m.id"
        f" WHERE m.to_actor_id = {actor} AND e.status = 'complete'"
    )
    return rows[0]["handled"] if rows else 0


def _last_handler(look: _Look, actor: int) -> str | None:
    rows = look.more(
        f"SELECT endpoint FROM messages WHERE to_actor_id = {actor} AND endpoint IS NOT NULL ORDER BY timestamp_us DESC, id DESC LIMIT 1"
    )
    return rows[0]["endpoint"] if rows else None


def _failure(look: _Look, actor: int, row: Row) -> models.FailureInfo | None:
    """How an actor failed: as the table of failures has it, else as the last snapshot."""
    if row:
        found = look.more(
            "SELECT f.timestamp_us, f.message, f.first_cause, f.cause_id, c.mesh_name, c.rank, c.message AS cause FROM failures f"
            f" LEFT JOIN failures c ON c.id = f.cause_id WHERE f.mesh_name = {text(row['mesh_name'] or '')} AND f.rank = {row['rank']}"
            " ORDER BY f.timestamp_us DESC LIMIT 1"
        )
        if found:
            one = found[0]
            cause = f"{one['mesh_name']}[{one['rank']}]" if one["mesh_name"] else None
            return {
                "error_message": one["message"],
                "root_cause_actor": row["full_name"] if cause is None else cause,
                "root_cause_name": row["display_name"] if cause is None else cause,
                "occurred_at": instant(one["timestamp_us"]) or "",
                "is_propagated": not one["first_cause"],
            }
    known = look.more(f"SELECT * FROM actor_failures f WHERE {in_last_snapshot('f')} AND node_id = {actor}")
    if known:
        one = known[0]
        return {
            "error_message": one["failure_error_message"],
            "root_cause_actor": one["failure_root_cause_actor"],
            "root_cause_name": one["failure_root_cause_name"],
            "occurred_at": instant(one["failure_occurred_at"]) or "",
            "is_propagated": one["failure_is_propagated"],
        }
    if row.get("status_reason"):
        return {
            "error_message": row["status_reason"],
            "root_cause_actor": row["full_name"],
            "root_cause_name": row["display_name"],
            "occurred_at": instant(row["status_timestamp_us"]) or "",
            "is_propagated": False,
        }
    return None


_ORDERING = (
    "skipped_session_count",
    "known_session_count",
    "returned_buffered_session_count",
    "returned_buffered_message_count",
    "returned_max_buffered_count",
)
_SESSION = ("sender", "last_released_seq", "expected_next_seq", "buffered_count", "oldest_buffered_seq", "newest_buffered_seq")


def _ordering(look: _Look, actor: int) -> models.InboundOrdering | None:
    rows = look.more(f"SELECT * FROM actor_inbound_orderings o WHERE {in_last_snapshot('o')} AND node_id = {actor}")
    if not rows:
        return None
    sessions = look.more(
        f"SELECT * FROM ordering_sessions o WHERE {in_last_snapshot('o')} AND node_id = {actor} ORDER BY session_id LIMIT 100"
    )
    found: Any = {name: rows[0][name] for name in ("enabled", "snapshot_complete", *_ORDERING)}
    found["sessions"] = [{"session_id": str(one["session_id"]), **{name: one[name] for name in _SESSION}} for one in sessions]
    return found


def _execution(look: _Look, actor: int, live: Row) -> models.Execution | None:
    if live:
        name, since = live["endpoint"], live["endpoint_since_us"]
        handlers: list[models.ActiveHandler] = [{"name": name, "active_count": 1, "oldest_since": instant(since) or ""}] if name else []
        # Live state has only the oldest of the endpoints in progress.
        return {"active_count": len(handlers), "active_handlers": handlers, "complete": False, "truncated": False}
    rows = look.more(f"SELECT * FROM actor_executions e WHERE {in_last_snapshot('e')} AND node_id = {actor}")
    if not rows:
        return None
    active = look.more(
        f"SELECT * FROM active_handlers h WHERE {in_last_snapshot('h')} AND node_id = {actor} ORDER BY oldest_since LIMIT 100"
    )
    return {
        "active_count": rows[0]["active_count"],
        "active_handlers": [
            {"name": one["name"], "active_count": one["active_count"], "oldest_since": instant(one["oldest_since"]) or ""} for one in active
        ],
        "complete": rows[0]["complete"],
        "truncated": rows[0]["truncated"],
    }


def _flight(look: _Look, actor: int) -> str | None:
    """What the actor did last: changes of its status, messages to it, and lines that it wrote."""
    rows = look.more(
        "SELECT timestamp_us, kind, name, detail FROM ("
        f"SELECT timestamp_us, 'status' AS kind, new_status AS name, reason AS detail FROM actor_status_events WHERE actor_id = {actor}"
        " UNION ALL SELECT timestamp_us, 'message' AS kind, coalesce(endpoint, 'port') AS name, CAST(from_actor_id AS VARCHAR) AS detail"
        f" FROM messages WHERE to_actor_id = {actor}"
        f" UNION ALL SELECT timestamp_us, stream AS kind, coalesce(level, '') AS name, line AS detail FROM logs WHERE actor_id = {actor}"
        f") ORDER BY timestamp_us DESC LIMIT {_FLIGHT_ROWS}"
    )
    return json.dumps(rows) if rows else None
