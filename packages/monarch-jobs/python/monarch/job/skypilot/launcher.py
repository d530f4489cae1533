"""SkyPilotLauncher: launches the task, reads how SkyPilot and the nodes are doing, brings the secret to nodes that want it, takes down.

`ids` of an allocation: `cluster` (its name), `request` (the launch, as the API server knows it), `job` (the number of the task on the
cluster; None until the launch is over), `config`, `key` and `nodes` (how ssh gets there), `forwards` (address to local port).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from monarch.job._job.launcher import HostStatus, JobStatus, Phase, Plan
from monarch.job._machine.commands import time_limit
from monarch.job.errors import BackendMissingError, JobError, SubmitError
from monarch.job.skypilot.arguments import SkyPilotArguments
from monarch.job.skypilot.interpreter import SkyPilotError, SkyProcess, sky_of
from monarch.job.skypilot.nodes import Nodes, Worker, node_names
from monarch.job.skypilot.task import text

# Seconds: a query of the task is a command on the first node, which takes seconds on some providers.
JOB_PAUSE_S = 3.0
CANCEL_TIMEOUT_S = 5.0
# Seconds, the provider's own limit for ending machines.
DOWN_TIMEOUT_S = 300.0

# SkyPilot's status of a task, and the phase of the job. A task that runs its set-up is not running: no limit runs yet.
PHASES: dict[str, Phase] = {
    "INIT": "pending",
    "PENDING": "pending",
    "SETTING_UP": "pending",
    "RUNNING": "running",
    "SUCCEEDED": "ended",
    "FAILED": "ended",
    "FAILED_SETUP": "ended",
    "FAILED_DRIVER": "ended",
    "CANCELLED": "ended",
}


class SkyPilotLauncher:
    """A `Launcher`; `secret` is asked for when workers want it, `changed` is called when `ids` have changed, `socket` names connections."""

    kind = "skypilot"

    def __init__(
        self,
        arguments: SkyPilotArguments,
        *,
        title: str,
        secret: Callable[[], bytes],
        changed: Callable[[], None],
        apply_id: str | None,
    ) -> None:
        self._arguments = arguments
        self._title = title
        self._secret = secret
        self._changed = changed
        self._apply_id = apply_id or "new"
        self._nodes: Nodes | None = None
        self._seen: dict[int, Worker] | None = None
        # The last status of a launch in progress, and its time: each query is work for the API server, which launches.
        self._going: JobStatus | None = None
        self._going_at = 0.0
        # The last query of the task, and its time.
        self._job: dict[str, Any] | None = None
        self._asked_at: float | None = None
        # State and reason of the end that the last query has found.
        self._end = ("", "")

    def plan(self) -> Plan:
        return Plan(self.kind, text(self._arguments))

    def submit(self, plan: Plan, secret: bytes) -> dict[str, Any]:
        cluster = self._arguments.cluster_name or f"monarch-{self._apply_id[:8]}"
        sky = self._sky()
        ids: dict[str, Any] = {"cluster": cluster, "request": None, "job": None, "config": "", "key": "", "nodes": [], "forwards": {}}
        try:
            self._check_free(sky, cluster)
            ids["request"] = sky.ask(
                "launch",
                title=self._title,
                task=plan.text,
                cluster=cluster,
                idle_minutes=self._arguments.idle_minutes_to_autostop,
                down=self._arguments.down_on_autostop,
            )
        except (SubmitError, BackendMissingError):
            raise
        except SkyPilotError as error:
            raise SubmitError(
                f"SkyPilot refuses the task: {error.kind}", title=self._title, cause=error.cause, command=f"sky launch -c {cluster}"
            ) from None
        except BaseException as error:
            # Interrupted: the server may have accepted the request.
            self._take_back(sky, cluster, error)
            raise
        return ids

    def poll(self, ids: dict[str, Any]) -> JobStatus:
        if not ids["nodes"]:
            now = time.monotonic()
            if self._going is not None and now - self._going_at < JOB_PAUSE_S:
                return self._going
            found = self._sky().ask("request", title=self._title, request=ids["request"], cluster=ids["cluster"])
            if found["state"] == "failed":
                return self._ended("the launch failed", output=found["detail"])
            if found["state"] == "going":
                line = " ".join(found["detail"].split())
                self._going_at = time.monotonic()
                self._going = JobStatus("pending", line or "SkyPilot is launching the cluster", self._hosts({}))
                return self._going
            ids["job"] = found["job"]
            state = self._task_state(ids)
            if state.phase != "running":
                return state
            self._learn_nodes(ids)
        workers = self._look(ids)
        wanting = {rank: worker for rank, worker in workers.items() if worker.state == "wanting"}
        if wanting:
            self._nodes_of(ids).give(wanting, self._secret())
        if len(workers) == self._total and all(worker.state != "exit" for worker in workers.values()):
            # Nodes whose workers answer run the task.
            return JobStatus("running", "", self._hosts(workers))
        state = self._task_state(ids)
        if state.phase != "running":
            return state
        unreachable = self._nodes_of(ids).unreachable
        if len(unreachable) == len(ids["nodes"]):
            return JobStatus("unknown", "no node answers: " + next(iter(unreachable.values())), self._hosts(workers, ids))
        if workers and len(workers) == self._total and all(worker.state == "exit" for worker in workers.values()):
            return self._ended("all workers ended", output=self._tail(ids), hosts=self._hosts(workers))
        return JobStatus("running", "", self._hosts(workers, ids))

    def addresses(self, ids: dict[str, Any]) -> dict[str, list[str | None]]:
        workers = self._seen
        if workers is None:
            # A new client finds the results of `poll` in the state file; without them, this is the first query.
            workers = self._look(ids) if ids["nodes"] else {}
        self._seen = None
        found: dict[str, list[str | None]] = {}
        first = 0
        for name, count in self._arguments.meshes.items():
            ranks = range(first, first + count)
            found[name] = [workers[rank].address if rank in workers else None for rank in ranks]
            first += count
        return self._nodes_of(ids).reachable(ids, found) if ids["nodes"] else found

    def relaunch(self, ids: dict[str, Any], lost: list[tuple[str, int]]) -> list[tuple[str, int]]:
        """In place, where the node answers and its task waits for that; SkyPilot replaces no single nodes."""
        if not ids["nodes"]:
            return []
        workers = self._look(ids)
        self._seen = None
        places = self._places()
        again = {places[host]: host for host in lost if places[host] in workers and workers[places[host]].state in ("exit", "wanting")}
        given = self._nodes_of(ids).give({rank: workers[rank] for rank in again}, self._secret())
        return [again[rank] for rank in given]

    def cancel(self, ids: dict[str, Any]) -> None:
        if ids["nodes"]:
            self._nodes_of(ids).close()
        request = None if ids["nodes"] else ids["request"]
        try:
            self._sky().ask("down", title=self._title, timeout=DOWN_TIMEOUT_S, cluster=ids["cluster"], request=request)
        except SkyPilotError as error:
            words = f"{error.kind}: {error.cause}"
            hint = f"sky down {ids['cluster']}"
            raise JobError(f"SkyPilot does not take cluster {ids['cluster']} down", title=self._title, cause=words, hint=hint) from None

    def logs(self, ids: dict[str, Any], lines: int) -> str:
        """The last lines that the task has printed on all nodes; empty while there is no task."""
        if ids["job"] is None:
            return ""
        return str(self._sky().ask("logs", title=self._title, cluster=ids["cluster"], job=ids["job"], lines=lines))

    @property
    def _total(self) -> int:
        return sum(self._arguments.meshes.values())

    def _sky(self) -> SkyProcess:
        return sky_of(self._title)

    def _check_free(self, sky: SkyProcess, cluster: str) -> None:
        """A cluster that is there already would be used, and taken down with this job."""
        if sky.ask("exists", title=self._title, cluster=cluster):
            raise SubmitError(
                f"SkyPilot has a cluster '{cluster}' already", title=self._title, hint=f"another name, or: sky down {cluster}"
            )

    def _take_back(self, sky: SkyProcess, cluster: str, error: BaseException) -> None:
        try:
            with time_limit(CANCEL_TIMEOUT_S):
                sky.ask("withdraw", title=self._title, cluster=cluster)
        except Exception as second:
            error.add_note(f"SkyPilot's cluster {cluster} may be left (sky down {cluster}): {second}")

    def _learn_nodes(self, ids: dict[str, Any]) -> None:
        found = self._sky().ask("ssh", title=self._title, cluster=ids["cluster"])
        path = found["config"]
        try:
            names = node_names(path, ids["cluster"]) if path else []
        except OSError as error:
            raise JobError(f"{path} cannot be read", title=self._title, cause=str(error)) from None
        if not names:
            raise JobError(f"SkyPilot offers no ssh to cluster {ids['cluster']}", title=self._title, hint="this provider has no ssh")
        ids.update({"config": path, "key": found["key"], "nodes": names})
        self._changed()

    def _nodes_of(self, ids: dict[str, Any]) -> Nodes:
        if self._nodes is None or self._nodes.names != ids["nodes"]:
            task = f"_{ids['cluster']}_{'*' if ids['job'] is None else ids['job']}"
            self._nodes = Nodes(self._title, ids["nodes"], ids["config"], ids["key"], self._apply_id[:8], task)
        return self._nodes

    def _look(self, ids: dict[str, Any]) -> dict[int, Worker]:
        self._seen = self._nodes_of(ids).look()
        return self._seen

    def _task_state(self, ids: dict[str, Any]) -> JobStatus:
        """The status by the states that SkyPilot has of the cluster and the task."""
        now = time.monotonic()
        if self._asked_at is None or now - self._asked_at >= JOB_PAUSE_S:
            try:
                self._job = self._sky().ask("job", title=self._title, cluster=ids["cluster"], job=ids["job"])
            except SkyPilotError as error:
                return JobStatus("unknown", f"SkyPilot does not say: {error.kind}", self._hosts({}))
            finally:
                self._asked_at = time.monotonic()
        assert self._job is not None
        if self._job["cluster"] is None:
            return self._ended("the cluster is gone", "taken down, stopped when idle, or lost by its provider")
        if self._job["cluster"] == "STOPPED":
            return self._ended("STOPPED", "the cluster was stopped, as it was idle or by someone")
        state = self._job["job"]
        phase = PHASES.get(state or "INIT", "unknown")
        if phase == "ended":
            return self._ended(str(state), output=self._tail(ids).rstrip())
        return JobStatus(phase, state or "no task yet", self._hosts({}))

    def _ended(self, state: str, words: str = "", output: str = "", hosts: list[HostStatus] | None = None) -> JobStatus:
        """The status of a job that has ended; the last line of its output is the reason."""
        self._end = state, output.rstrip().rpartition("\n")[2]
        line = f"{state}: {words}" if words else state
        return JobStatus("ended", "\n".join(filter(None, (line, output))), hosts or [])

    def ending(self) -> tuple[str, str]:
        """State and reason of the end, as the last `poll` has found it."""
        return self._end

    def _tail(self, ids: dict[str, Any]) -> str:
        try:
            return self.logs(ids, 20)
        except JobError as error:
            return f"its log cannot be read: {error}"

    def _places(self) -> dict[tuple[str, int], int]:
        hosts = [(name, index) for name, count in self._arguments.meshes.items() for index in range(count)]
        return {host: rank for rank, host in enumerate(hosts)}

    def _hosts(self, workers: dict[int, Worker], ids: dict[str, Any] | None = None) -> list[HostStatus]:
        """Without a worker, a host is waited for; it is lost where its node no longer answers and had one."""
        hosts: list[HostStatus] = []
        silent = "; ".join(f"{name}: {why}" for name, why in self._nodes_of(ids).unreachable.items()) if ids else ""
        for (mesh, index), rank in self._places().items():
            worker = workers.get(rank)
            if worker is None:
                hosts.append(HostStatus(mesh, index, "", "lost" if silent else "waiting", None, silent))
            elif worker.state == "exit":
                hosts.append(HostStatus(mesh, index, worker.node, "lost", None, f"its worker ended {worker.detail}"))
            else:
                hosts.append(HostStatus(mesh, index, worker.node, "waiting", worker.address, ""))
        return hosts
