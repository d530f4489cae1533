"""TorchXLauncher: submits the application with workers in the place of its commands, asks its scheduler, cancels.

`ids` of an allocation: `handle` as TorchX has it, `scheduler`, `directory` (the job's folder in the workspace), `holder` (pid and start of
the process that holds the application, for schedulers that know it only as long as they live; else None).
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
from collections.abc import Callable
from typing import Any

from monarch.job._job.allocation import tail
from monarch.job._job.launcher import HostPhase, HostStatus, JobStatus, Phase, Plan
from monarch.job._machine import sessions
from monarch.job._machine.commands import Commands
from monarch.job._machine.sessions import Session
from monarch.job.errors import JobError, SubmitError
from monarch.job.slurm.arguments import checked
from monarch.job.slurm.directory import MAX_FILE, JobDirectory, Worker
from monarch.job.slurm.launcher import SlurmLauncher
from monarch.job.slurm.output import JobRecord
from monarch.job.torchx.application import places, sizes, with_workers
from monarch.job.torchx.arguments import TorchXArguments
from monarch.job.torchx.connection import Connection, ask
from monarch.job.torchx.worker_script import script

SUBMIT_TIMEOUT_S = 120.0  # an image may have to be downloaded
# Seconds to wait for an interrupted submission that has nearly ended: its application can then be cancelled by name.
TAKE_BACK_S = 4.0
TAIL_LINES = 10
STATE_FILE = "application.json"
_FOLDER = "APPLY_ID"
_PHASES: dict[str, Phase] = {"UNSUBMITTED": "pending", "SUBMITTED": "pending", "PENDING": "pending", "RUNNING": "running"}


class TorchXLauncher:
    """A `Launcher`; `apply_id` is None where only the plan is asked for, `secret` is asked for where workers are started again."""

    kind = "torchx"

    def __init__(self, arguments: TorchXArguments, title: str, apply_id: str | None, secret: Callable[[], bytes]) -> None:
        self._arguments = arguments
        self._title = title
        self._apply_id = apply_id
        self._secret = secret
        self._places = places(sizes(arguments.app))
        # State and reason in the last answer of the scheduler.
        self._seen = ("", "")

    def plan(self) -> Plan:
        shown = {
            "scheduler": self._arguments.scheduler,
            "scheduler_cfg": self._arguments.scheduler_cfg,
            "app": with_workers(self._arguments.app, f"{self._base}/{_FOLDER}/worker.sh"),
        }
        return Plan(self.kind, json.dumps(shown, indent=2) + "\n", {"worker.sh": self._script(_FOLDER)})

    @property
    def _base(self) -> str:
        return os.path.abspath(os.path.expanduser(self._arguments.workspace or ".monarch/torchx"))

    def _script(self, name: str) -> str:
        is_local = self._arguments.scheduler == "local_cwd"
        listen = f"tcp://{'127.0.0.1' if is_local else '*'}:{self._arguments.monarch_port}"
        logs = f"{self._base}/monarch-{name}"
        return script(f"{self._base}/{name}", logs, os.getcwd(), self._arguments.python, listen)

    def submit(self, plan: Plan, secret: bytes) -> dict[str, Any]:
        assert self._apply_id is not None
        folder = f"{self._base}/{self._apply_id}"
        try:
            JobDirectory(folder, Commands(self._title)).make(self._base, folder, f"{folder}/hosts", f"{folder}/wanted")
            with open(f"{folder}/worker.sh", "w", opener=_private) as f:
                f.write(self._script(self._apply_id))
            JobDirectory(folder, Commands(self._title)).write("secret", secret)
        except OSError as e:
            self._directory(folder).remove()
            raise SubmitError("its folder cannot be made", title=self._title, cause=str(e), hint="see workspace") from None
        # TorchX leaves files in the folder from which it submits to SLURM; local processes run in the client's folder.
        directory = folder if self._arguments.scheduler == "slurm" else os.getcwd()
        try:
            return self._run(Connection(self._arguments.scheduler, self._title, self._apply_id, directory, f"{folder}/torchx.log"), folder)
        except BaseException:
            self._directory(folder).remove()
            # Workers may have started before the failure. Their logs belong to no job, and no command lists them.
            for path in glob.glob(f"{glob.escape(self._base)}/monarch-{self._apply_id}.*"):
                os.unlink(path)
            raise

    def _run(self, connection: Connection, folder: str) -> dict[str, Any]:
        app = with_workers(self._arguments.app, f"{folder}/worker.sh")
        try:
            connection.send("submit", app=app, cfg=self._arguments.scheduler_cfg, folder=folder)
            found = connection.answer("submit", SUBMIT_TIMEOUT_S)
        except SubmitError:
            connection.end()
            raise
        except BaseException as error:
            self._take_back(connection, error)
            raise
        connection.leave()
        holder = connection.session._asdict() if found["holds"] else None
        return {"handle": found["handle"], "scheduler": self._arguments.scheduler, "directory": folder, "holder": holder}

    def _take_back(self, connection: Connection, error: BaseException) -> None:
        handle = None
        try:
            found = connection.answer("submit", TAKE_BACK_S)
            handle = found["handle"]
            if not found["holds"]:
                connection.request("cancel", TAKE_BACK_S, handle=handle)
        except Exception as second:
            error.add_note(f"the application {handle or ''} may be left: {second}")
        left = connection.end()
        if left:
            error.add_note(f"processes do not end: {', '.join(map(str, left))}")

    def poll(self, ids: dict[str, Any]) -> JobStatus:
        workers = self._directory(ids["directory"]).read().workers
        if ids["scheduler"] == "slurm":
            record = self.slurm_record(ids)
            if record is None:
                return JobStatus("unknown", "SLURM does not answer", self._hosts(ids, workers, {}))
            self._seen = record.state, record.reason
            state: dict[str, Any] | None = {"words": "", "replicas": []}
            phase = record.phase
        else:
            state = self._state(ids)
            if state is None:
                self._seen = "UNKNOWN", "TorchX knows nothing of the application any more"
                return JobStatus("ended", self._words, self._hosts(ids, workers, {}))
            phase = "ended" if state["is_over"] else _PHASES.get(state["state"], "unknown")
            self._seen = state["state"], str(state["words"]).partition("\n")[0]
        words = self._words
        replicas = {(one["role"], one["replica"]): one for one in state["replicas"]}
        hosts = self._hosts(ids, workers, replicas)
        if phase == "ended":
            reasons = [f"{host.mesh}[{host.rank}]: {host.detail}" for host in hosts if host.phase == "lost"]
            words = "\n".join(filter(None, (words, state["words"], *reasons, self._scheduler_tail(ids))))
        return JobStatus(phase, words, hosts)

    @property
    def _words(self) -> str:
        state, reason = self._seen
        return f"{state} ({reason})" if reason else state

    def ending(self) -> tuple[str, str]:
        """State and reason of the application, as the last `poll` found them."""
        return self._seen

    def slurm_record(self, ids: dict[str, Any]) -> JobRecord | None:
        """The job as SLURM has it: TorchX asks the accounting only, which a cluster need not have."""
        return self._slurm().record(_slurm_ids(ids))

    def _slurm(self) -> SlurmLauncher:
        return SlurmLauncher(checked({"meshes": sizes(self._arguments.app)}), title=self._title, secret=self._secret)

    def _state(self, ids: dict[str, Any]) -> dict[str, Any] | None:
        """What TorchX knows about the application."""
        if ids["holder"] is None:
            found: dict[str, Any] | None = ask(ids["scheduler"], self._title, "describe", handle=ids["handle"])
            return found
        try:
            with open(os.path.join(ids["directory"], STATE_FILE)) as f:
                state: dict[str, Any] | None = json.load(f)
        except FileNotFoundError:
            state = None
        if state is not None and not state["is_over"] and not sessions.is_running(Session(**ids["holder"])):
            if not self._alive(ids):
                return {**state, "state": "FAILED", "is_over": True, "words": "the process that held the application is gone"}
            state["words"] = "the process that held the application is gone, its workers go on"
        return state

    def _alive(self, ids: dict[str, Any]) -> bool:
        assert self._apply_id is not None
        return bool(sessions.members(None, self._apply_id))

    def _hosts(self, ids: dict[str, Any], workers: dict[int, Worker], replicas: dict[tuple[str, int], dict[str, Any]]) -> list[HostStatus]:
        hosts: list[HostStatus] = []
        for role, ranks in self._places.items():
            for index, rank in enumerate(ranks):
                worker, known = workers.get(rank, Worker()), replicas.get((role, index), {})
                detail = ""
                if worker.exit_code is not None:
                    detail = f"its worker ended with exit code {worker.exit_code}"
                elif known.get("is_over"):
                    detail = f"the scheduler has replica {index} as {known['state']}"
                words = known.get("words", "")
                phase: HostPhase = "lost" if detail else "waiting"
                name = _text(f"{ids['directory']}/hosts/{rank}.host") or known.get("host", "")
                hosts.append(HostStatus(role, index, name, phase, None, "\n".join(filter(None, (detail, words)))))
        return hosts

    def _scheduler_tail(self, ids: dict[str, Any]) -> str:
        """What the scheduler has printed about a job that has ended, where no worker has printed anything."""
        if any(os.path.exists(path) and os.path.getsize(path) for path in self.log_paths(ids).values() if not path.endswith("torchx.log")):
            return ""
        if ids["scheduler"] == "slurm":
            return tail(self.log_paths(ids)[None], TAIL_LINES)
        if ids["holder"] is not None:
            return ""
        role = next(iter(self._places))
        try:
            lines: list[str] = ask(ids["scheduler"], self._title, "logs", handle=ids["handle"], role=role, replica=0, lines=TAIL_LINES)
        except JobError:
            return ""  # not all schedulers have logs
        return "\n".join(lines)

    def addresses(self, ids: dict[str, Any]) -> dict[str, list[str | None]]:
        workers = self._directory(ids["directory"]).read().workers
        return {role: [workers.get(rank, Worker()).address for rank in ranks] for role, ranks in self._places.items()}

    def relaunch(self, ids: dict[str, Any], lost: list[tuple[str, int]]) -> list[tuple[str, int]]:
        """In place, where the script of the replica is there: TorchX itself starts no single replica again."""
        directory = self._directory(ids["directory"])
        directory.write("secret", self._secret())
        again: list[tuple[str, int]] = []
        for role, index in lost:
            rank = self._places[role][index]
            if os.path.exists(f"{ids['directory']}/hosts/{rank}.pid"):
                directory.request(rank, "here")
                again.append((role, index))
        return again

    def cancel(self, ids: dict[str, Any]) -> None:
        if ids["holder"] is not None:
            assert self._apply_id is not None
            left = sessions.end([Session(**ids["holder"])], self._apply_id, is_everywhere=True)
            if left:
                raise JobError(f"processes do not end: {', '.join(map(str, left))}", title=self._title)
        elif ids["scheduler"] == "slurm":
            self._slurm().cancel(_slurm_ids(ids))
        else:
            ask(ids["scheduler"], self._title, "cancel", handle=ids["handle"])
        self._directory(ids["directory"]).remove()

    def log_paths(self, ids: dict[str, Any]) -> dict[tuple[int, str] | None, str]:
        """Where the worker of each rank prints, by stream; under None, what the scheduler prints."""
        base = f"{os.path.dirname(ids['directory'])}/monarch-{self._apply_id}"
        found: dict[tuple[int, str] | None, str] = {None: f"{ids['directory']}/torchx.log"}
        if ids["scheduler"] == "slurm":
            found[None] = f"{ids['directory']}/slurm-{_app_id(ids)}.out"
        for rank in (rank for ranks in self._places.values() for rank in ranks):
            found |= {(rank, stream): f"{base}.{rank}.{stream}" for stream in ("out", "err")}
        return found

    def _directory(self, path: str) -> JobDirectory:
        return JobDirectory(path, Commands(self._title))


def _slurm_ids(ids: dict[str, Any]) -> dict[str, Any]:
    return {"job_id": _app_id(ids), "cluster": None, "directory": ids["directory"]}


def _app_id(ids: dict[str, Any]) -> str:
    return str(ids["handle"]).rpartition("/")[2]


def _text(path: str) -> str:
    with contextlib.suppress(OSError), open(path, errors="replace") as f:
        return f.read(MAX_FILE).strip()
    return ""


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)
