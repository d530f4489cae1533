"""What lives on this host and how it ended: procs, actors, meshes and links, with failures; row by row, as there are few such events.

A host knows the names and shapes of all meshes that have a member on it, and of the last ones that have none: no event states that a mesh
has ended, and a mesh without a member here may live on other hosts.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from monarch.telemetry._arrow import pa, pc
from monarch.telemetry._ingest.ids import ACTOR_EVENT, FAILURE, LINK, U64, actor_id, event_id, mixed
from monarch.telemetry._ingest.places import AGENT, Place, Places
from monarch.telemetry._ingest.regions import WITHOUT_DIMENSIONS, region_of, sizes_of, view_json
from monarch.telemetry._ingest.rows import Rows
from monarch.telemetry._ingest.running import Running
from monarch.telemetry._store.entities import ENDED
from monarch.telemetry._store.store import Store
from monarch.telemetry._tables.events import ACTOR_STATUS_EVENTS
from monarch.telemetry._tables.exit_reason import ORDERLY, exit_reason
from monarch.telemetry._tables.facts import FAILURES, SUPERVISION_EVENTS

# `{creator}.<{class} {name}{point}>`; a point is `{'gpus': 1/4}`.
_DISPLAY = re.compile(r"<(?:(?P<type>\S+) )?(?P<name>[^<>{]*)(?P<point>\{[^{}]*\})?>$")
_COORDINATE = re.compile(r": (\d+)/(\d+)")
# The causes of ends that are failures, if it was not the program.
_CAUSES = {"not_started": "system", **dict.fromkeys(("signal", "oom", "host_lost", "link_lost", "client_lost"), "infrastructure")}
# Ends that the host of the process cannot record.
_UNRECORDED = frozenset({"host_lost", "link_lost", "client_lost"})
# The most failures that were delivered to an owner and are not handled yet.
_MOST_OPEN = 1_000
LAST_LINES = 10
# The class of the actor of the runtime that starts host services, which include the collectors.
_STARTER = ".HostServices"
# The most ended actors of a living proc in snapshots.
MOST_ENDED = 100


class Living(NamedTuple):
    """An actor that has not ended."""

    display: str
    created_us: int


class Ended(NamedTuple):
    """An actor that has ended, in a proc that lives. `kind` and `message` are those of the reason."""

    display: str
    created_us: int
    ended_us: int
    failed: bool
    kind: str
    message: str


def rank_of(point: str) -> int:
    """The rank of a point as displays show it; the last dimension counts fastest. 0 for a mesh without dimensions."""
    rank = 0
    for coordinate, size in _COORDINATE.findall(point):
        rank = rank * int(size) + int(coordinate)
    return rank


def point_of(shape: Mapping[str, int], rank: int) -> str:
    """The point of a rank, as displays show it: the inverse of `rank_of`. Empty for a mesh without dimensions."""
    shown: list[str] = []
    for label, size in list(shape.items())[::-1]:
        rank, coordinate = divmod(rank, size)
        shown.append(f"'{label}': {coordinate}/{size}")
    return "{" + ", ".join(reversed(shown)) + "}" if shown else ""


class Facts:
    """Writes entities and failures. `host` is this one's number and name, `client` the script's process. One thread at a time."""

    def __init__(self, store: Store, places: Places, host_id: int, host: str, client: int) -> None:
        self._store = store
        self._places = places
        self._host_id, self._host, self._client = host_id, host, client
        self._meshes = Meshes(self._forget)
        self.names, self.shapes = self._meshes.names, self._meshes.shapes
        # Delivered supervision events without an outcome, by mesh, rank, owner.
        self._delivered: dict[tuple[int, int, str], dict[str, Any]] = {}
        # Meshes of the actors that start host services.
        self.starters: set[int] = set()
        # Names of other hosts by their number.
        self._host_names: dict[int, str] = {}
        # The number of failed actors, by proc.
        self.failed: dict[int, int] = {}
        # Actors of each proc by their meshes, for their names when the proc ends; and the most recently ended ones.
        self._actors: dict[int, dict[int, Living]] = {}
        self._ended: dict[int, OrderedDict[int, Ended]] = {}
        # Rows of `actor_status_events`, which are written together.
        self._statuses: list[dict[str, Any]] = []

    def _forget(self, mesh: int) -> None:
        self.starters.discard(mesh)
        self._store.drop("meshes", mesh)

    def begun(self, rows: Mapping[str, Rows]) -> None:
        """What must be known before other events of the same look have names."""
        for row in _each(rows, "proc.start"):
            self._proc(row)
        for row in _each(rows, "mesh.made"):
            self._mesh(row)
        for row in _each(rows, "actor.start"):
            self._actor(row)
        self._write_statuses()

    def ended(self, rows: Mapping[str, Rows], running: Running) -> None:
        """Ends and failures, after the other events of the same look; `running` has what the processes were doing."""
        failing = {(row["proc"], row["mesh"]): row["method"] for row in _each(rows, "message.handled", failed_only=True)}
        # Before the ends: an owner that has not handled a failure ends because of it.
        for row in _each(rows, "supervision.delivered"):
            self._deliver(row)
        for row in _each(rows, "supervision.handled"):
            self._handled(row)
        for row in _each(rows, "actor.end"):
            self._actor_end(row, failing.get((row["proc"], row["mesh"])) or running.endpoint(row["proc"], row["mesh"]))
        for row in _each(rows, "proc.end"):
            self._proc_end(row, running)
        # In the order of time: a session that continues at once has lost a connection and got another one after the last look.
        links = [(row["us"], row["number"], kind, row) for kind in ("link.resumed", "link.broken") for row in _each(rows, kind)]
        for _, _, kind, row in sorted(links, key=lambda link: link[:2]):
            self._link(kind, row)
        self._write_statuses()

    def living_procs(self) -> set[int]:
        """Procs with a row that has no end."""
        found: set[int] = set()
        for batch in self._store.snapshot(["procs"])["procs"]:
            found.update(batch.filter(pc.is_null(batch.column("ended_us"))).column("proc_id").to_pylist())
        return found

    def found_ended(self, procs: Iterable[Mapping[str, Any]], actors: Iterable[Mapping[str, Any]], running: Running) -> None:
        """Ends of which the events are lost, as rows of `proc.end` and `actor.end`."""
        for row in actors:
            self._actor_end(row, None)
        for row in procs:
            self._proc_end(row, running)
        self._write_statuses()

    # ---- beginnings

    def _proc(self, row: Mapping[str, Any]) -> None:
        unique, proc, rank = row["mesh"] or "", row["proc"], row["rank"]
        if proc == self._host_id != self._client:
            # The agent of a host other than that of the client is not a process of the job.
            self._places.put(proc, Place(AGENT, row["pid"], None, None))
            return
        is_client = unique == "client"
        given = unique if is_client else unique.rpartition("-")[0]
        name = given if is_client else f"{given}[{rank}]"
        self._places.put(proc, Place(name, row["pid"], None if is_client else given, None if is_client else rank))
        started = row["us"] - row["age"] // 1000
        if self._store.entity("procs", proc) is None:
            self._meshes.joined(row["id"], given)
        self._store.put(
            "procs",
            proc,
            {"proc_id": proc, "host_id": self._host_id, "mesh_id": row["id"], "rank": rank, "pid": row["pid"], "started_us": started},
        )
        if is_client:
            whole = {"class": "Client", "given_name": "client", "full_name": "<root>", "shape_json": WITHOUT_DIMENSIONS}
            self._store.put("meshes", row["id"], {"id": row["id"], "timestamp_us": started, **whole})
            root = {"mesh_id": row["id"], "rank": 0, "full_name": "<root>", "display_name": "<root>"}
            if self._store.entity("actors", actor_id(proc, 0)) is None:
                self._status(proc, 0, row["number"], started, "Client", None)
            self._put_actor(proc, 0, {"timestamp_us": started, **root})

    def _mesh(self, row: Mapping[str, Any]) -> None:
        mesh, name, kind = row["mesh"], row["name"] or "", row["class"] or ""
        shape = region_of(row["shape"] or "{}")
        self._meshes.made(mesh, name, shape)
        full = f"{row['creator'] or ''}.<{kind + ' ' if kind else ''}{name}>"
        made = {"id": mesh, "timestamp_us": row["us"] - row["age"] // 1000, "class": kind or "Proc", "given_name": name, "full_name": full}
        parent = {"parent_mesh_id": row["parent"]} if row["parent"] else {}
        if parent and (row["offset"] or kind):
            # Processes of an older version do not report the part of the parent.
            parent["parent_view_json"] = view_json(row["offset"] - 1, row["dims"] or "") if row["offset"] else shape
        self._store.put("meshes", mesh, {**made, "shape_json": shape, **parent})

    def _actor(self, row: Mapping[str, Any]) -> None:
        proc, mesh, display = row["proc"], row["mesh"], row["actor"] or ""
        found = _DISPLAY.search(display)
        name, point = (found["name"], found["point"] or "") if found else (display, "")
        rank = rank_of(point)
        if found and (found["type"] or "").endswith(_STARTER):
            self.starters.add(mesh)
        self._places.actor(proc, mesh, name, rank)
        of_proc = self._actors.setdefault(proc, {})
        # A process introduces itself to each new observer.
        is_known = mesh in of_proc
        if not is_known:
            self._meshes.joined(mesh, name)
        at = row["us"] - row["age"] // 1000
        of_proc[mesh] = Living(display, at)
        shown = {"full_name": display, "display_name": f"{name}{point}"}
        self._put_actor(proc, mesh, {"timestamp_us": at, "mesh_id": mesh, "rank": rank, **shown})
        if is_known:
            return
        self._status(proc, mesh, row["number"], at, "Created", None)
        # A new actor is initialized next, which is a message.
        if row["age"]:
            self._status(proc, mesh, row["number"] + (1 << 62), row["us"], "Idle", None)

    def _put_actor(self, proc: int, mesh: int, row: dict[str, Any]) -> None:
        number = actor_id(proc, mesh)
        self._store.put("actors", number, {"id": number, **row})

    def _status(self, proc: int, mesh: int, number: int, us: int, status: str, reason: str | None) -> None:
        row = {
            "id": event_id(ACTOR_EVENT, proc, number),
            "timestamp_us": us,
            "actor_id": actor_id(proc, mesh),
            "new_status": status,
            "reason": reason,
        }
        self._statuses.append(row)

    def _write_statuses(self) -> None:
        rows, self._statuses = self._statuses, []
        if rows:
            self._store.append("actor_status_events", pa.RecordBatch.from_pylist(rows, schema=ACTOR_STATUS_EVENTS.schema()))

    # ---- ends

    def _actor_end(self, row: Mapping[str, Any], endpoint: str | None) -> None:
        proc, mesh, kind = row["proc"], row["mesh"], row["kind"] or ""
        orderly = kind in ORDERLY
        living = self._actors.get(proc, {}).pop(mesh, None)
        # The lines after the first one are the traceback.
        message, _, _ = (row["detail"] or kind).partition("\n")
        self._status(proc, mesh, row["number"], row["us"], "Stopped" if orderly else "Failed", message)
        if not orderly:
            self.failed[proc] = self.failed.get(proc, 0) + 1
            at = self._places.actor_of(proc, mesh)
            place = self._places.get(proc)
            name, rank = at if at is not None else (self.names.get(mesh, ""), None)
            cause = self._cause(None if living is None else living.display)
            self._failure(row, mesh, name, rank, place.pid or None, endpoint, kind, row["detail"] or kind, cause)
        if living is not None:
            last = self._ended.setdefault(proc, OrderedDict())
            last[mesh] = Ended(living.display, living.created_us, row["us"], not orderly, kind, message)
            while len(last) > MOST_ENDED:
                last.popitem(last=False)
            self._meshes.left(mesh)
        self._places.actor_ends(proc, mesh)
        self._store.put("actors", actor_id(proc, mesh), {}, ended=True)

    def _proc_end(self, row: Mapping[str, Any], running: Running) -> None:
        """Recorded by the agent of this host, which may have procs of other jobs: those are not known here."""
        # The field `number` of this type, an exit code or signal, has the same name as the number of other events.
        proc, kind, code = row["peer"], row["kind"] or "", row["number"]
        known = self._store.entity("procs", proc)
        if known is None:
            return
        detail = row["detail"] or ""
        ended = {"ended_us": row["us"], "exit_reason": exit_reason(kind, detail)}
        if kind == "exit_code":
            ended["exit_code"] = code
        elif kind == "signal":
            ended["signal"] = code
        self._store.put("procs", proc, ended, ended=True)
        place, actors = self._places.get(proc), self._actors.pop(proc, {})
        self.failed.pop(proc, None)
        self._ended.pop(proc, None)
        if kind not in ORDERLY:
            message = detail or {"exit_code": f"exit code {code}", "signal": f"signal {code}"}.get(kind, kind)
            mesh, rank = known["mesh_id"], known["rank"]
            endpoint, pid = running.endpoint(proc), place.pid or known["pid"]
            cause = self._failure(row, mesh, place.mesh_name or self.names.get(mesh, ""), rank, pid, endpoint, kind, message, None)
            for its in actors:
                at = self._places.actor_of(proc, its)
                name, of = at if at is not None else (self.names.get(its, ""), rank)
                endpoint = running.endpoint(proc, its)
                self._failure(row, its, name, of, pid, endpoint, kind, f"its proc has ended: {message}", cause)
        for its in actors:
            self._status(proc, its, mixed(proc, its), row["us"], "Stopped" if kind in ORDERLY else "Failed", ended["exit_reason"])
            self._store.put("actors", actor_id(proc, its), {}, ended=True)
            self._meshes.left(its)
        if known.get("ended_us") is None:
            self._meshes.left(known["mesh_id"])

    def _failure(
        self,
        row: Mapping[str, Any],
        mesh: int,
        name: str,
        rank: int | None,
        pid: int | None,
        endpoint: str | None,
        kind: str,
        text: str,
        cause: int | None,
    ) -> int:
        """Writes a failure; `cause` is the one that it comes of."""
        number = mixed(FAILURE, mesh, rank or 0)
        message, _, trace = text.partition("\n")
        lines = self._last_lines(pid)
        found = {
            "id": number,
            "timestamp_us": row["us"],
            "kind": _CAUSES.get(kind, "user"),
            "first_cause": cause is None,
            "cause_id": cause,
            "mesh_name": name,
            "rank": rank,
            "host": self._host,
            "pid": pid,
            "endpoint": endpoint,
            "exit_reason": kind,
            "message": message,
            "traceback": trace or None,
            "last_lines": "\n".join(lines) if lines else None,
        }
        self._store.append("failures", pa.RecordBatch.from_pylist([found], schema=FAILURES.schema()))
        return number

    def _cause(self, owner: str | None) -> int | None:
        """The failure that was delivered to this owner first, of those that it has not handled."""
        return next((found["failure_id"] for (_, _, its), found in self._delivered.items() if its == owner), None)

    def _last_lines(self, pid: int | None) -> list[str]:
        """What a process printed last, as far as it is kept."""
        lines: list[str] = []
        if not pid:
            return lines
        for batch in reversed(self._store.snapshot(["logs"])["logs"][-64:]):
            of = zip(batch.column("pid").to_pylist(), batch.column("stream").to_pylist(), batch.column("line").to_pylist(), strict=True)
            lines = [line for its, stream, line in of if its == pid and stream in ("stdout", "stderr")] + lines
            if len(lines) >= LAST_LINES:
                break
        return lines[-LAST_LINES:]

    # ---- supervision

    def _deliver(self, row: Mapping[str, Any]) -> None:
        mesh, rank, owner, kind = row["mesh"], row["rank"], row["owner"] or "", row["kind"] or ""
        failure = mixed(FAILURE, mesh, rank)
        if kind in _UNRECORDED:
            self._failure(row, mesh, self.names.get(mesh, ""), rank, None, None, kind, kind.replace("_", " "), None)
        found = {
            "id": mixed(FAILURE, mesh, rank, row["number"]),
            "timestamp_us": row["us"],
            "failure_id": failure,
            "mesh_name": self.names.get(mesh, ""),
            "crashed_ranks_json": json.dumps([rank]),
            "delivered_to": owner,
            "handled": False,
        }
        self._delivered[mesh, rank, owner] = found
        if len(self._delivered) > _MOST_OPEN:
            # A failure that was not handled so far is unlikely to be handled: it is written to the history.
            self._store.append("supervision_events", _supervision([self._delivered.pop(next(iter(self._delivered)))]))

    def _handled(self, row: Mapping[str, Any]) -> None:
        found = self._delivered.pop((row["mesh"], row["rank"], row["owner"] or ""), None)
        if found is not None:
            self._store.append("supervision_events", _supervision([{**found, "handled": bool(row["handled"])}]))

    def _display(self, mesh: int, rank: int) -> str:
        """The full name of a member of a mesh, as `actors` has it, where the mesh is known here."""
        known = self._store.entity("meshes", mesh)
        if known is None:
            return f"{self.names.get(mesh, '')}[{rank}]"
        return f"{str(known['full_name']).removesuffix('>')}{point_of(sizes_of(known['shape_json']), rank)}>"

    def known_actors(self) -> tuple[dict[int, dict[int, Living]], dict[int, dict[int, Ended]], dict[str, str]]:
        """Living and ended actors by proc and mesh; and by the display of an owner the display of the first actor that failed below it,
        where the owner has not handled that: an owner that has failed, has failed of it.
        """
        living = {proc: dict(actors) for proc, actors in self._actors.items()}
        ended: dict[int, dict[int, Ended]] = {proc: dict(actors) for proc, actors in self._ended.items()}
        causes: dict[str, str] = {}
        for mesh, rank, owner in self._delivered:
            causes.setdefault(owner, self._display(mesh, rank))
        return living, ended, causes

    def forget(self, proc: int) -> None:
        """Nothing more comes from a process. One with a row may have its end still to come, which does this."""
        known = self._store.entity("procs", proc)
        if known is None or known.get("ended_us") is not None:
            for of_procs in (self._actors, self._ended, self.failed):
                of_procs.pop(proc, None)

    def held(self) -> dict[str, int]:
        """What is kept from one look to the next, by kind."""
        return {
            "actors": sum(map(len, self._actors.values())),
            "ended actors": sum(map(len, self._ended.values())),
            "procs": len(self._actors.keys() | self._ended.keys() | self.failed.keys()),
            "meshes": len(self.names),
            "deliveries": len(self._delivered),
        }

    def delivered(self) -> list[Any]:
        """The supervision events of which the outcome is not known."""
        return [_supervision(list(self._delivered.values()))] if self._delivered else []

    # ---- links

    def _link(self, kind: str, row: Mapping[str, Any]) -> None:
        agent, host = row["proc"], row["host"]
        key = mixed(LINK, agent, host)
        before = self._store.entity("links", key)
        new = dict(before) if before is not None else self._new_link(key, host)
        if row["round_trip"]:
            new["rtt_us"] = row["round_trip"] // 1000
        if kind == "link.resumed":
            new["state"], new["unacked"] = "up", row["waiting"]
            new["reconnects"] += row["received"] > 0
        else:
            new["state"], new["last_error"] = "down", row["end"]
            new["bytes_out"] += row["sent"]
            new["bytes_in"] += row["received"]
        self._store.put("links", key, new)

    def _new_link(self, key: int, host: int) -> dict[str, Any]:
        none = {"rtt_us": 0, "bytes_out": 0, "bytes_in": 0, "reconnects": 0, "unacked": 0}
        return {"link_id": key, "from_host": self._host, "to_host": self.host_name(host), "kind": "tcp", **none}

    def know_hosts(self, hosts: Iterable[Mapping[str, Any]]) -> None:
        """Hosts that the agent of this one has sessions with, as `host_state` has them: one made before recording began has no event."""
        for one in hosts:
            number = int(one["id"], 16)
            if one.get("host"):
                self._host_names[number] = str(one["host"])
            key = mixed(LINK, self._host_id, number)
            known = self._store.entity("links", key)
            up = one["state"] == "joined"
            if known is None:
                error = {} if up else {"last_error": str(one["state"])}
                self._store.put("links", key, {**self._new_link(key, number), "state": "up" if up else "down", **error})
            elif known["to_host"] != self.host_name(number):
                self._store.put("links", key, {"to_host": self.host_name(number)})

    def host_name(self, host: int) -> str:
        """The name of a host of this job; its number for one that is not known."""
        if host in self._host_names:
            return self._host_names[host]
        found = self._store.entity("hosts", host)
        return str(found["name"]) if found is not None else f"{host:016x}"


def _supervision(rows: list[dict[str, Any]]) -> Any:
    return pa.RecordBatch.from_pylist(rows, schema=SUPERVISION_EVENTS.schema())


def _each(rows: Mapping[str, Rows], kind: str, *, failed_only: bool = False) -> list[dict[str, Any]]:
    found = rows.get(kind)
    if found is None:
        return []
    if failed_only:
        found = found.where(pc.equal(found["failed"], U64[1]))
    return found.dicts()


class Meshes:
    """By number. `forgotten` is called with each mesh that is not known any more. Not for several threads at once."""

    def __init__(self, forgotten: Callable[[int], None], *, most: int = ENDED) -> None:
        self._forgotten, self._most = forgotten, most
        self.names: dict[int, str] = {}
        self.shapes: dict[int, str] = {}
        # The number of members on this host, by mesh; and the other meshes, the oldest first.
        self._members: dict[int, int] = {}
        self._without: OrderedDict[int, None] = OrderedDict()

    def made(self, mesh: int, name: str, shape: str) -> None:
        """A process of this host has spawned a mesh."""
        self.names[mesh], self.shapes[mesh] = name, shape
        if mesh not in self._members:
            self._rest(mesh)

    def joined(self, mesh: int, name: str) -> None:
        """A member begins on this host."""
        self.names.setdefault(mesh, name)
        self._members[mesh] = self._members.get(mesh, 0) + 1
        self._without.pop(mesh, None)

    def left(self, mesh: int) -> None:
        """A member that had joined has ended."""
        self._members[mesh] -= 1
        if not self._members[mesh]:
            del self._members[mesh]
            self._rest(mesh)

    def _rest(self, mesh: int) -> None:
        self._without[mesh] = None
        self._without.move_to_end(mesh)
        if len(self._without) > self._most:
            gone, _ = self._without.popitem(last=False)
            self.names.pop(gone, None)
            self.shapes.pop(gone, None)
            self._forgotten(gone)
