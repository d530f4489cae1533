"""The dashboard API: the graph of a job, of its single hosts, procs and actors, or rolled up into meshes."""

from __future__ import annotations

from typing import Any

from monarch.telemetry._http import dashboard_models as models
from monarch.telemetry._http.calls import Call, Handler
from monarch.telemetry._http.placement import Placement
from monarch.telemetry._http.statements import ACTORS, RUNTIME, in_last_snapshot

MOST_NODES, MOST_EDGES = 20_000, 20_000
Row = dict[str, Any]
# The worst status of its members is that of a mesh.
_ORDER = ("failed", "stopped", "stopping", "unknown", "initializing", "created", "processing", "client", "idle")


def dag(call: Call) -> models.DagAnswer:
    """`GET /api/dag`."""
    by_mesh = call.parameters.get("mode", "actor") == "mesh"
    hide = call.parameters.get("hide_system", False)
    shown = f" WHERE NOT class {RUNTIME}" if hide else ""
    meshes = call.rows(f"SELECT id, class, given_name, parent_mesh_id, parent_view_json FROM meshes{shown} ORDER BY timestamp_us, id")
    hidden = " WHERE NOT is_system" if hide else ""
    actors = call.rows(
        "SELECT id, mesh_id, rank, full_name, display_name, latest_status, is_system, mesh_class"
        f" FROM ({ACTORS}){hidden} ORDER BY mesh_id, rank LIMIT {MOST_NODES + 1}"
    )
    hosts = call.rows("SELECT host_id, name, address, state FROM hosts ORDER BY name, host_id")
    procs = call.rows("SELECT proc_id, host_id, mesh_id, rank, pid, ended_us, exit_reason FROM procs ORDER BY mesh_id, rank, proc_id")
    pairs = call.rows(
        "SELECT from_actor_id, to_actor_id, count(*) AS messages FROM messages GROUP BY from_actor_id, to_actor_id"
        f" ORDER BY messages DESC, from_actor_id, to_actor_id LIMIT {MOST_EDGES + 1}"
    )
    graph = _Graph()
    (_of_meshes if by_mesh else _of_actors)(graph, meshes, hosts, procs, actors[:MOST_NODES], pairs[:MOST_EDGES])
    snapshots, errors = _snapshot(call)
    return {
        "nodes": list(graph.nodes.values())[:MOST_NODES],
        "edges": list(graph.edges.values())[:MOST_EDGES],
        "snapshot_pending": not snapshots,
        "snapshot_partial": errors > 0 or max(len(actors), len(graph.nodes)) > MOST_NODES or max(len(pairs), len(graph.edges)) > MOST_EDGES,
        "resolution_error_count": errors,
    }


def _snapshot(call: Call) -> tuple[int, int]:
    """Snapshots, and nodes of the last one that could not be read."""
    found = call.rows(
        "SELECT (SELECT count(*) FROM snapshots) AS snapshots,"
        f" (SELECT count(*) FROM resolution_errors r WHERE {in_last_snapshot('r')}) AS errors"
    )[0]
    return int(found["snapshots"]), int(found["errors"])


class _Graph:
    def __init__(self) -> None:
        self.nodes: dict[str, models.DagNode] = {}
        self.edges: dict[tuple[str, str, str], models.DagEdge] = {}

    def node(self, tier: Any, entity: int, label: str, **more: Any) -> str:
        name = f"{tier}:{entity}"
        none: dict[str, Any] = {"subtitle": None, "status": None, "mesh_id": None, "rank": None, "is_system": False, "count": 1}
        found: Any = {"id": name, "entity_id": str(entity), "tier": tier, "label": label, **none, **more}
        self.nodes[name] = found
        return name

    def edge(self, kind: Any, source: str, target: str, count: int = 0) -> None:
        """Only between nodes that are there; edges between the same nodes are one."""
        if source not in self.nodes or target not in self.nodes:
            return
        known = self.edges.get((kind, source, target))
        if known is not None:
            known["count"] += count
            return
        self.edges[kind, source, target] = {
            "id": f"{kind}:{source}:{target}",
            "source_id": source,
            "target_id": target,
            "type": kind,
            "count": count,
        }


def _of_actors(graph: _Graph, meshes: list[Row], hosts: list[Row], procs: list[Row], actors: list[Row], pairs: list[Row]) -> None:
    names = {mesh["id"]: mesh["given_name"] for mesh in meshes}
    for host in hosts:
        graph.node("host", host["host_id"], host["name"], subtitle=host["address"], status=host["state"])
    for proc in procs:
        name = graph.node(
            "proc",
            proc["proc_id"],
            f"{names.get(proc['mesh_id']) or 'proc'}[{proc['rank']}]",
            subtitle=f"pid {proc['pid']}",
            status="running" if proc["ended_us"] is None else proc["exit_reason"] or "ended",
            mesh_id=str(proc["mesh_id"]),
            rank=proc["rank"],
        )
        graph.edge("hierarchy", f"host:{proc['host_id']}", name)
    placement = Placement(meshes, procs)
    for actor in actors:
        name = graph.node(
            "actor",
            actor["id"],
            actor["display_name"] or actor["full_name"],
            subtitle=actor["mesh_class"],
            status=actor["latest_status"],
            mesh_id=str(actor["mesh_id"]),
            rank=actor["rank"],
            is_system=actor["is_system"],
        )
        graph.edge("hierarchy", f"proc:{placement.proc(actor['id'], actor['mesh_id'], actor['rank'])}", name)
    for pair in pairs:
        graph.edge("message", f"actor:{pair['from_actor_id']}", f"actor:{pair['to_actor_id']}", pair["messages"])


def _of_meshes(graph: _Graph, meshes: list[Row], hosts: list[Row], procs: list[Row], actors: list[Row], pairs: list[Row]) -> None:
    tiers = {"Host": "host_mesh", "Proc": "proc_mesh"}
    statuses: dict[int, list[str]] = {}
    members: dict[int, int] = {}
    for actor in actors:
        statuses.setdefault(actor["mesh_id"], []).append(str(actor["latest_status"]))
    for one in (*procs, *actors):
        members[one["mesh_id"]] = members.get(one["mesh_id"], 0) + 1
    names: dict[int, str] = {}
    host_meshes = [mesh for mesh in meshes if mesh["class"] == "Host"]
    for mesh in meshes:
        number = mesh["id"]
        # There are no rows that name the host mesh of a host: a single one has all.
        count = len(hosts) if [mesh] == host_meshes else members.get(number, 0)
        names[number] = graph.node(
            tiers.get(mesh["class"], "actor_mesh"),
            number,
            mesh["given_name"],
            subtitle=mesh["class"],
            status=min(statuses.get(number, ()), key=_rank, default=None),
            mesh_id=str(number),
            count=count,
        )
    for mesh in meshes:
        if mesh["parent_mesh_id"] in names:
            graph.edge("hierarchy", names[mesh["parent_mesh_id"]], names[mesh["id"]])
    mesh_of = {actor["id"]: names.get(actor["mesh_id"], "") for actor in actors}
    for pair in pairs:
        graph.edge("message", mesh_of.get(pair["from_actor_id"], ""), mesh_of.get(pair["to_actor_id"], ""), pair["messages"])


def _rank(status: str) -> int:
    return _ORDER.index(status.lower()) if status.lower() in _ORDER else _ORDER.index("unknown")


HANDLERS: dict[str, Handler] = {"api_dag": dag}
