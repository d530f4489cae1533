"""Rows of the table functions: what the agent of this host knows of its processes at this moment, which native code answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from monarch.extension import JobId, setting
from monarch.extension.inspection import host_stacks, host_state
from monarch.telemetry._arrow import pa
from monarch.telemetry._collector.host_facts import process_memory
from monarch.telemetry._ingest.entities import Living, rank_of
from monarch.telemetry._ingest.ids import actor_id
from monarch.telemetry._ingest.ingest import Ingest
from monarch.telemetry._sql.functions import parsed
from monarch.telemetry._stacks.frames import procs_of_look
from monarch.telemetry._stacks.merged import StackReport
from monarch.telemetry._stacks.outside import complete
from monarch.telemetry._stacks.pyspy import dump
from monarch.telemetry._stacks.result import Result
from monarch.telemetry._stacks.rows import stack_rows
from monarch.telemetry._tables.live import LIVE_ACTORS, LIVE_PROCS, LIVE_QUEUES, MEMORY, STACKS
from monarch.telemetry.errors import TelemetryError

# The most seconds that the agent of this host may take. It answers within two.
_AGENT_TIMEOUT = 4.0
# The prefix of the classes of actors of the runtime.
SYSTEM = "monarch."
# The state of an actor whose process is stopped, or cannot answer.
UNKNOWN = "Unknown"
_STATUS = {None: "Idle", "__init__": "Initializing", "__cleanup__": "Stopping"}


class Live:
    """Of one job. Any thread."""

    def __init__(self, host: str, job: JobId, ingest: Ingest) -> None:
        self._host = host
        # The number of a job is that of its client.
        self._job = int(job)
        self._ingest = ingest

    def tables(self, calls: Sequence[str]) -> dict[str, tuple[Any, list[Any]]]:
        """Schema and rows of these calls; one look serves all that need the same."""
        found: dict[str, tuple[Any, list[Any]]] = {}
        state: dict[str, Any] | None = None
        makers = {"live_procs": self._procs, "live_actors": self._actors, "live_queues": self._queues, "memory": self._memory}
        tables = {"live_procs": LIVE_PROCS, "live_actors": LIVE_ACTORS, "live_queues": LIVE_QUEUES, "memory": MEMORY}
        for call in calls:
            function, mesh = parsed(call)
            if function == "stacks":
                looked = procs_of_look(self._ours(_looked(host_stacks)))
                found[call] = (STACKS.schema(), [stack_rows(complete(looked, _read), self._host, mesh)])
                continue
            if state is None:
                state = self.state()
            rows = [row for row in makers[function](state) if mesh is None or row.get("mesh_name") == mesh]
            table = tables[function]
            names = {column.name for column in table.columns}
            plain = [{name: value for name, value in row.items() if name in names} for row in rows]
            found[call] = (table.schema(), [pa.RecordBatch.from_pylist(plain, schema=table.schema())])
        return found

    def state(self) -> dict[str, Any]:
        """What the agent knows of the processes of this job on this host, as `host_state`. `TelemetryError` where it does not answer."""
        return self._ours(_looked(host_state))

    def stacks(self, procs: Collection[int] | None, native: bool, locals: bool) -> StackReport:
        """The stacks of these processes of this host, None: of all. Processes that do not answer are read from outside."""
        looked = procs_of_look(self._ours(_looked(host_stacks)))
        mine = [one for one in looked if procs is None or one.proc_id in procs]

        def read(pid: int) -> Result:
            return _read(pid, native=native, locals=locals)

        return StackReport.of(complete(mine, read, every=native or locals))

    def _ours(self, looked: dict[str, Any]) -> dict[str, Any]:
        """Without the procs of other jobs: those that do not record for this job, and that no process of it on this host has spawned."""
        owners = {int(proc["uid"], 16): int(proc["owner"], 16) for proc in looked["procs"]}

        def is_ours(proc: int) -> bool:
            seen: set[int] = set()
            while proc and proc not in seen:
                if proc == self._job or self._ingest.places.is_of_job(proc):
                    return True
                seen.add(proc)
                proc = owners.get(proc, 0)
            return False

        ours = {proc for proc in owners if is_ours(proc)}
        return {**looked, "procs": [proc for proc in looked["procs"] if int(proc["uid"], 16) in ours]}

    def _procs(self, state: dict[str, Any]) -> list[dict[str, Any]]:
        now = time.time()
        found: list[dict[str, Any]] = []
        for proc in state["procs"]:
            actors = _actors_of(proc)
            found.append(
                {
                    **self._place(proc),
                    "state": proc["state"],
                    "started_us": int((now - proc["age"]) * 1e6),
                    "silent_us": None if proc["silent"] is None else int(proc["silent"] * 1e6),
                    "num_actors": len(actors),
                    "failed_actor_count": self._ingest.facts.failed.get(int(proc["uid"], 16), 0),
                    "queue_depth": sum(actor["queued"] for actor in actors),
                    "rss_bytes": proc["rss"],
                }
            )
        return found

    def _actors(self, state: dict[str, Any]) -> list[dict[str, Any]]:
        now = time.time()
        found: list[dict[str, Any]] = []
        known: Mapping[int, Mapping[int, Living]] = {}
        if any(proc["answer"] is None for proc in state["procs"]):
            known = self._ingest.known().living
        for proc in state["procs"]:
            uid = int(proc["uid"], 16)
            if proc["answer"] is None:
                found.extend(self._unknown(uid, mesh, living) for mesh, living in known.get(uid, {}).items())
            for actor in _actors_of(proc):
                kind, name, point = split_display(actor["display"])
                doing = actor["doing"]
                found.append(
                    {
                        "actor_id": actor_id(uid, int(actor["mesh"], 16)),
                        "proc_id": uid,
                        "host": self._host,
                        "mesh_name": name,
                        "rank": rank_of(point),
                        "actor_type": kind,
                        "actor_status": status_of(doing),
                        "endpoint": doing,
                        "endpoint_since_us": int((now - actor["doing_for"]) * 1e6) if doing else None,
                        "overdue_since_us": None if (overdue := actor.get("overdue")) is None else int((now - overdue) * 1e6),
                        "queue_depth": actor["queued"],
                        "messages_processed": actor["taken"],
                        "total_processing_time_us": self._ingest.work_of(uid, int(actor["mesh"], 16)).us,
                        "is_system": kind.startswith(SYSTEM),
                    }
                )
        return found

    def _unknown(self, proc: int, mesh: int, living: Living) -> dict[str, Any]:
        """An actor whose process does not answer, by what has been recorded of it."""
        kind, name, point = split_display(living.display)
        work = self._ingest.work_of(proc, mesh)
        return {
            "actor_id": actor_id(proc, mesh),
            "proc_id": proc,
            "host": self._host,
            "mesh_name": name,
            "rank": rank_of(point),
            "actor_type": kind,
            "actor_status": UNKNOWN,
            "endpoint": None,
            "endpoint_since_us": None,
            "overdue_since_us": None,
            "queue_depth": 0,
            "messages_processed": work.handled,
            "total_processing_time_us": work.us,
            "is_system": kind.startswith(SYSTEM),
        }

    def _queues(self, state: dict[str, Any]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for proc in state["procs"]:
            place = self._place(proc)
            uid = place["proc_id"]
            for actor in _actors_of(proc):
                if actor["queued"]:
                    _, name, point = split_display(actor["display"])
                    of = {"actor_id": actor_id(uid, int(actor["mesh"], 16)), "mesh_name": name, "rank": rank_of(point)}
                    found.append({**place, **of, "kind": "messages", "depth": actor["queued"]})
            links: list[dict[str, Any]] = proc["answer"]["links"] if proc["answer"] else []
            found.extend({**place, "kind": "outgoing", "peer": link["peer"], "depth": link["queued"]} for link in links if link["queued"])
        return found

    def _memory(self, state: dict[str, Any]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for proc in state["procs"]:
            used = process_memory(proc["pid"])
            if used is not None:
                sizes = {"rss_bytes": used.rss, "vm_bytes": used.vm, "shared_bytes": used.shared, "swap_bytes": used.swap}
                found.append({**self._place(proc), **sizes})
        return found

    def _place(self, proc: dict[str, Any]) -> dict[str, Any]:
        _, name, point = split_display(proc["name"])
        is_client = proc["name"] == "client"
        place = {"mesh_name": None, "rank": None} if is_client else {"mesh_name": name, "rank": rank_of(point)}
        return {"host": self._host, "proc_id": int(proc["uid"], 16), "pid": proc["pid"], **place}


def split_display(display: str) -> tuple[str, str, str]:
    """Class (empty for a proc), name and point of a display such as `<root>.<train.Trainer trainer{'gpus': 0/4}>`."""
    inner = display.rpartition("<")[2].removesuffix(">")
    name, brace, point = inner.partition("{")
    kind, _, plain = name.rpartition(" ")
    return kind, plain, brace + point


def status_of(doing: str | None) -> str:
    """The status of an actor by the endpoint that it is running."""
    return _STATUS.get(doing, "Processing")


def _actors_of(proc: dict[str, Any]) -> list[dict[str, Any]]:
    return proc["answer"]["actors"] if proc["answer"] else []


def _read(pid: int, *, native: bool = False, locals: bool = False) -> Result:
    return dump(pid, native=native, locals=locals, pyspy_bin=str(setting("pyspy_bin") or ""))


def _looked(look: Callable[[float], dict[str, Any]]) -> dict[str, Any]:
    try:
        return look(_AGENT_TIMEOUT)
    except OSError as error:
        raise TelemetryError(f"the agent of this host does not answer: {error}") from None
