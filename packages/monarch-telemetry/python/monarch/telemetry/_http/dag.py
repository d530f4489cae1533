"""The dashboard API: the graph of a job, of its single hosts, procs and actors, or rolled up into meshes.

Related rows are found in columns; nodes and edges are objects only while they are written, a few at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, NamedTuple

from monarch.telemetry._arrow import pa, pc
from monarch.telemetry._http import dashboard_models as models
from monarch.telemetry._http.calls import Call, Handler, Reply
from monarch.telemetry._http.json_parts import batches, document, reply
from monarch.telemetry._http.placement import placed
from monarch.telemetry._http.statements import ACTORS, RUNTIME, SERVICES, in_last_snapshot

MOST_NODES, MOST_EDGES = 20_000, 20_000
Row = dict[str, Any]
# The status of a mesh is the worst status of its members.
_ORDER = ("failed", "stopped", "stopping", "unknown", "initializing", "created", "processing", "client", "idle")
_TIERS = {"Host": "host_mesh", "Proc": "proc_mesh"}


class _Rows(NamedTuple):
    """Tables that a graph is made of."""

    meshes: Any
    hosts: Any
    procs: Any
    actors: Any
    pairs: Any


class _Part(NamedTuple):
    """Nodes or edges: how many, and lists of them."""

    size: int
    of: Iterator[list[Any]]


def dag(call: Call) -> Reply:
    """`GET /api/dag`."""
    by_mesh = call.parameters.get("mode", "actor") == "mesh"
    hide = call.parameters.get("hide_system", False)
    shown = f" WHERE NOT class {RUNTIME} AND id NOT IN ({SERVICES})" if hide else ""
    used = f" WHERE mesh_id NOT IN ({SERVICES})" if hide else ""
    hidden = " WHERE NOT is_system" if hide else ""
    meshes, actors, hosts, procs, pairs, looked = call.at_once(
        f"SELECT id, class, given_name, parent_mesh_id, parent_view_json FROM meshes{shown} ORDER BY timestamp_us, id",
        "SELECT id, mesh_id, rank, full_name, display_name, latest_status, is_system, mesh_class"
        f" FROM ({ACTORS}){hidden} ORDER BY mesh_id, rank LIMIT {MOST_NODES + 1}",
        "SELECT host_id, name, address, state FROM hosts ORDER BY name, host_id",
        f"SELECT proc_id, host_id, mesh_id, rank, pid, ended_us, exit_reason FROM procs{used} ORDER BY mesh_id, rank, proc_id",
        "SELECT from_actor_id, to_actor_id, count(*) AS messages FROM messages GROUP BY from_actor_id, to_actor_id"
        f" ORDER BY messages DESC, from_actor_id, to_actor_id LIMIT {MOST_EDGES + 1}",
        # The number of snapshots, and of unreadable nodes of the last one.
        "SELECT (SELECT count(*) FROM snapshots) AS snapshots,"
        f" (SELECT count(*) FROM resolution_errors r WHERE {in_last_snapshot('r')}) AS errors",
    )
    found = _Rows(
        _single(meshes, "id"),
        _single(hosts, "host_id"),
        _single(procs, "proc_id"),
        _single(actors.slice(0, MOST_NODES), "id"),
        pairs.slice(0, MOST_EDGES),
    )
    nodes, edges = (_of_meshes if by_mesh else _of_actors)(found)
    snapshots, errors = (int(looked.column(name)[0].as_py()) for name in ("snapshots", "errors"))
    node_count, edge_count = (sum(part.size for part in parts) for parts in (nodes, edges))
    is_cut = max(actors.num_rows, node_count) > MOST_NODES or max(pairs.num_rows, edge_count) > MOST_EDGES
    rest = {"snapshot_pending": not snapshots, "snapshot_partial": errors > 0 or is_cut, "resolution_error_count": errors}
    return reply(document({"nodes": _first(nodes, MOST_NODES), "edges": _first(edges, MOST_EDGES)}, rest))


def _first(parts: Iterable[_Part], most: int) -> Iterator[list[Any]]:
    for some in chain.from_iterable(part.of for part in parts):
        yield some[:most]
        most -= len(some)
        if most <= 0:
            return


def _single(table: Any, key: str) -> Any:
    """The rows of a table with one for each value of this column, the last one: a host that was lost has rows on others."""
    table = table.combine_chunks()
    values = table.column(key)
    if pc.count_distinct(values).as_py() == table.num_rows:
        return table
    last = {value: place for place, value in enumerate(values.to_pylist())}
    return table.take(pa.array(sorted(last.values()), pa.int64()))


def _looked_up(values: Any, keys: Any, found: Any) -> Any:
    """For each value what stands beside the equal key, else null."""
    return found.take(pc.index_in(values, value_set=keys))


def _both(table: Any, left: tuple[str, Any], right: tuple[str, Any]) -> Any:
    """The rows whose columns have values of these sets."""
    return table.filter(pc.and_(*(pc.is_in(table.column(name), value_set=pc.unique(of)) for name, of in (left, right))))


def _node(tier: Any, entity: int, label: str, **more: Any) -> models.DagNode:
    none: dict[str, Any] = {"subtitle": None, "status": None, "mesh_id": None, "rank": None, "is_system": False, "count": 1}
    node: Any = {"id": f"{tier}:{entity}", "entity_id": str(entity), "tier": tier, "label": label, **none, **more}
    return node


def _edge(kind: Any, source: str, target: str, count: int = 0) -> models.DagEdge:
    return {"id": f"{kind}:{source}:{target}", "source_id": source, "target_id": target, "type": kind, "count": count}


def _host(row: Row) -> models.DagNode:
    return _node("host", row["host_id"], row["name"], subtitle=row["address"], status=row["state"])


def _proc(row: Row) -> models.DagNode:
    return _node(
        "proc",
        row["proc_id"],
        f"{row['mesh_name'] or 'proc'}[{row['rank']}]",
        subtitle=f"pid {row['pid']}",
        status="running" if row["ended_us"] is None else row["exit_reason"] or "ended",
        mesh_id=str(row["mesh_id"]),
        rank=row["rank"],
    )


def _actor(row: Row) -> models.DagNode:
    return _node(
        "actor",
        row["id"],
        row["display_name"] or row["full_name"],
        subtitle=row["mesh_class"],
        status=row["latest_status"],
        mesh_id=str(row["mesh_id"]),
        rank=row["rank"],
        is_system=row["is_system"],
    )


def _mesh(row: Row) -> models.DagNode:
    return _node(
        row["tier"],
        row["id"],
        row["given_name"],
        subtitle=row["class"],
        status=row["status"],
        mesh_id=str(row["id"]),
        count=row["count"],
    )


def _of_actors(found: _Rows) -> tuple[list[_Part], list[_Part]]:
    meshes, hosts, procs, actors, pairs = found
    names = _looked_up(procs.column("mesh_id"), meshes.column("id"), meshes.column("given_name"))
    nodes = [
        _Part(hosts.num_rows, batches(hosts, make=_host)),
        _Part(procs.num_rows, batches(procs.append_column("mesh_name", names), make=_proc)),
        _Part(actors.num_rows, batches(actors, make=_actor)),
    ]
    on_hosts = procs.filter(pc.is_in(procs.column("host_id"), value_set=pc.unique(hosts.column("host_id"))))
    on_procs = pa.table({"id": actors.column("id"), "proc": placed(meshes, procs, actors)})
    on_procs = on_procs.filter(pc.is_valid(on_procs.column("proc")))
    ids = actors.column("id")
    between = _both(pairs, ("from_actor_id", ids), ("to_actor_id", ids))

    def message(row: Row) -> models.DagEdge:
        return _edge("message", f"actor:{row['from_actor_id']}", f"actor:{row['to_actor_id']}", row["messages"])

    edges = [
        _Part(
            on_hosts.num_rows,
            batches(on_hosts, make=lambda row: _edge("hierarchy", f"host:{row['host_id']}", f"proc:{row['proc_id']}")),
        ),
        _Part(on_procs.num_rows, batches(on_procs, make=lambda row: _edge("hierarchy", f"proc:{row['proc']}", f"actor:{row['id']}"))),
        _Part(between.num_rows, batches(between, make=message)),
    ]
    return nodes, edges


def _of_meshes(found: _Rows) -> tuple[list[_Part], list[_Part]]:
    meshes, hosts, procs, actors, pairs = found
    ids, classes = meshes.column("id"), meshes.column("class")
    tiers = pa.array(["actor_mesh", *_TIERS.values()], pa.string())
    tiers = tiers.take(pc.fill_null(pc.add(pc.index_in(classes, value_set=pa.array(list(_TIERS), pa.string())), 1), 0))
    is_host = pc.equal(classes, "Host")
    counts = pc.fill_null(_counted(ids, procs, actors), 0)
    if pc.sum(is_host).as_py() == 1:
        # There are no rows that name the host mesh of a host: a single one has all hosts.
        counts = pc.if_else(is_host, pa.scalar(hosts.num_rows, pa.int64()), counts)
    shown = meshes.append_column("tier", tiers).append_column("status", _statuses(ids, actors)).append_column("count", counts)
    below = meshes.append_column("tier", tiers).append_column("above", _looked_up(meshes.column("parent_mesh_id"), ids, tiers))
    below = below.filter(pc.is_valid(below.column("above")))
    sums = _mesh_pairs(meshes, actors, pairs)

    def hierarchy(row: Row) -> models.DagEdge:
        return _edge("hierarchy", f"{row['above']}:{row['parent_mesh_id']}", f"{row['tier']}:{row['id']}")

    tier_of = {name: _looked_up(sums.column(name), ids, tiers) for name in ("source", "target")}
    sums = sums.append_column("source_tier", tier_of["source"]).append_column("target_tier", tier_of["target"])

    def message(row: Row) -> models.DagEdge:
        return _edge("message", f"{row['source_tier']}:{row['source']}", f"{row['target_tier']}:{row['target']}", row["messages_sum"])

    return [_Part(shown.num_rows, batches(shown, make=_mesh))], [
        _Part(below.num_rows, batches(below, make=hierarchy)),
        _Part(sums.num_rows, batches(sums, make=message)),
    ]


def _counted(ids: Any, procs: Any, actors: Any) -> Any:
    """Members of each of these meshes."""
    members = pa.table({"mesh": pa.chunked_array([*procs.column("mesh_id").chunks, *actors.column("mesh_id").chunks], pa.uint64())})
    counted = members.group_by("mesh", use_threads=False).aggregate([([], "count_all")])
    return _looked_up(ids, counted.column("mesh"), counted.column("count_all"))


def _statuses(ids: Any, actors: Any) -> Any:
    """The worst status of the actors of each of these meshes."""
    statuses = actors.column("latest_status")
    distinct = sorted(pc.unique(statuses).to_pylist(), key=lambda one: (_rank(str(one)), str(one)))
    ordered = pa.array(distinct, pa.string())
    table = pa.table({"mesh": actors.column("mesh_id"), "rank": pc.index_in(statuses, value_set=ordered)})
    worst = table.group_by("mesh", use_threads=False).aggregate([("rank", "min")])
    return ordered.take(_looked_up(ids, worst.column("mesh"), worst.column("rank_min")))


def _mesh_pairs(meshes: Any, actors: Any, pairs: Any) -> Any:
    """Messages between meshes: `source`, `target` and `messages_sum`."""
    ids, of = actors.column("id"), actors.column("mesh_id")
    between = pa.table(
        {
            "source": _looked_up(pairs.column("from_actor_id"), ids, of),
            "target": _looked_up(pairs.column("to_actor_id"), ids, of),
            "messages": pairs.column("messages"),
        }
    )
    between = _both(between, ("source", meshes.column("id")), ("target", meshes.column("id")))
    return between.group_by(["source", "target"], use_threads=False).aggregate([("messages", "sum")])


def _rank(status: str) -> int:
    return _ORDER.index(status.lower()) if status.lower() in _ORDER else _ORDER.index("unknown")


HANDLERS: dict[str, Handler] = {"api_dag": dag}
