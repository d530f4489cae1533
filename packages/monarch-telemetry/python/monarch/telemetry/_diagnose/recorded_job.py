"""A snapshot of a job that has ended, or that runs elsewhere, from its tables alone: a capture has no processes to look into.

The state is that of the last snapshot in the tables. Calls without an answer are read from the messages: an actor that runs an
endpoint, and that has called another actor since, ten seconds ago or longer, counts as one that waits. The tables do not separate calls
from broadcasts, whose callers do not wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from monarch.telemetry._diagnose.snapshot import Actor, End, Host, Proc, Snapshot, Wait

_LAST = "(SELECT max(snapshot_id) FROM snapshots)"
STATEMENTS = {
    "hosts": "SELECT name, state, reason FROM hosts LIMIT 1000",
    "procs": "SELECT p.proc_id, h.name AS host, p.pid, m.given_name AS mesh, p.rank FROM procs p"
    " LEFT JOIN hosts h ON h.host_id = p.host_id LEFT JOIN meshes m ON m.id = p.mesh_id WHERE p.ended_us IS NULL LIMIT 10000",
    "actors": "SELECT n.instance_id AS id, max(c.parent_id) AS proc_id, max(m.given_name) AS mesh, max(a.rank) AS rank,"
    " min(h.name) AS endpoint, max(s.snapshot_ts) - min(h.oldest_since) AS running_us, max(n.queue_depth) AS queued,"
    " max(n.messages_processed) AS taken FROM actor_nodes n JOIN snapshots s ON s.snapshot_id = n.snapshot_id"
    " LEFT JOIN children c ON c.snapshot_id = n.snapshot_id AND c.child_id = n.node_id"
    " LEFT JOIN active_handlers h ON h.snapshot_id = n.snapshot_id AND h.node_id = n.node_id"
    " LEFT JOIN actors a ON a.id = n.instance_id LEFT JOIN meshes m ON m.id = a.mesh_id"
    f" WHERE n.snapshot_id = {_LAST} AND NOT n.is_system GROUP BY n.instance_id LIMIT 10000",
    "calls": "WITH now AS (SELECT max(snapshot_ts) AS us FROM snapshots), busy AS ("
    "SELECT n.instance_id AS id, min(h.oldest_since) AS since FROM actor_nodes n JOIN active_handlers h"
    f" ON h.snapshot_id = n.snapshot_id AND h.node_id = n.node_id WHERE n.snapshot_id = {_LAST} GROUP BY n.instance_id),"
    " done AS (SELECT DISTINCT message_id FROM message_status_events WHERE status IN ('complete', 'failed'))"
    " SELECT m.from_actor_id, m.to_actor_id, max(m.endpoint) AS endpoint FROM messages m JOIN busy b ON b.id = m.from_actor_id"
    " CROSS JOIN now LEFT ANTI JOIN done d ON d.message_id = m.id WHERE m.endpoint IS NOT NULL AND m.timestamp_us >= b.since"
    " AND m.timestamp_us < now.us - 10000000 GROUP BY m.from_actor_id, m.to_actor_id LIMIT 10000",
}


def of_rows(rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> Snapshot:
    """The snapshot of the rows of `STATEMENTS`."""
    hosts, ends = list[Host](), list[End]()
    for row in rows.get("hosts", ()):
        name = str(row["name"])
        lost = row["state"] == "lost"
        hosts.append(Host(name, "lost" if lost else "joined"))
        if lost:
            ends.append(End(name, None, "host_lost", detail=str(row["reason"] or ""), host=name, source="table hosts"))
    procs = {
        int(row["proc_id"]): Proc(str(row["proc_id"]), str(row["host"]), int(row["pid"]), "", row["mesh"], row["rank"], 0)
        for row in rows.get("procs", ())
    }
    actors = {int(row["id"]): _actor(row) for row in rows.get("actors", ()) if row["proc_id"] is not None}
    waits = [
        Wait(actors[caller].proc, actors[caller].thread, endpoint=str(row["endpoint"]), name=to.name, mesh=to.mesh, targets=((0, to.proc),))
        for row in rows.get("calls", ())
        if (caller := int(row["from_actor_id"])) in actors and (to := actors.get(int(row["to_actor_id"]))) is not None
    ]
    return Snapshot(tuple(procs.values()), tuple(actors.values()), tuple(hosts), tuple(waits), tuple(ends))


def _actor(row: Mapping[str, Any]) -> Actor:
    """The actor; its own number stands for its thread, which tables do not have."""
    number = int(row["id"])
    name = str(row["mesh"] or f"actor {number}")
    running = float(row["running_us"] or 0) / 1e6
    queued, taken = int(row["queued"] or 0), int(row["taken"] or 0)
    return Actor(str(row["proc_id"]), str(number), name, "", row["rank"], 0, row["endpoint"], running, queued, taken, thread=number)
