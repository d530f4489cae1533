"""Hosts as processes of this machine: one `monarch worker` each, in a session of its own, on unix sockets in a private directory."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from monarch.extension import python_command
from monarch.job._files import credentials
from monarch.job._files.contexts import logs_folder
from monarch.job._job.job_state import check_count, check_mesh_names
from monarch.job._job.launcher import Host, HostPhase, HostStatus, JobStatus, Launcher, LogFile, Phase, Plan
from monarch.job._job.launcher_job import LauncherJob
from monarch.job._job.worker_address import (
    SERVICE_PROC_IDS_ENV,
    SERVICE_PROC_RANK_ENV,
    deserialize_service_proc_ids,
    new_service_proc_id,
    published_address,
    serialize_service_proc_ids,
)
from monarch.job._machine import sessions
from monarch.job._machine.sessions import Session
from monarch.job.errors import JobError, SubmitError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping


# The kernel's limit for the path of a unix socket.
_SOCKET_PATH = 107
_WORKER = "monarch.extension.cli"


class ProcessSpec(BaseModel):
    """Hosts per mesh, and what is added to the environment of the workers."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    meshes: dict[str, Annotated[int, Field(ge=1)]] = Field(min_length=1)
    env: dict[str, str]

    @field_validator("env")
    @classmethod
    def _can_be_set(cls, value: dict[str, str]) -> dict[str, str]:
        for name, text in value.items():
            if not name or "=" in name or "\0" in name + text:
                raise ValueError(f"{name!r} cannot be set in an environment")
        return value


class ProcessJob(LauncherJob):
    """Hosts that are processes of this machine: a job without a scheduler, for development and tests.

    Args:
        meshes: the number of hosts of each mesh, by name.
        env: variables that are added to the environment of all hosts.

    Raises `TypeError` or `ValueError` for malformed arguments; nothing starts before `apply` or `state`.

    ```python
    from monarch.job import ProcessJob

    job = ProcessJob({"trainers": 2, "rollout": 1})
    state = job.state(cached_path=None)
    assert state.trainers.sizes == {"hosts": 2}
    state.rollout.spawn_procs({"gpus": 2}).initialized.get()
    job.kill()
    ```
    """

    __module__ = "monarch.job"
    kind = "process"

    def __init__(self, meshes: dict[str, int], env: dict[str, str] | None = None) -> None:
        super().__init__()
        if not meshes:
            raise ValueError("a job has at least one mesh")
        check_mesh_names(meshes)
        for name, count in meshes.items():
            check_count(name, count)
        self._spec = ProcessSpec(meshes=dict(meshes), env=dict(env or {}))

    def _launcher(self) -> Launcher:
        return ProcessLauncher(self._spec.meshes, self._spec.env, self.apply_id, self._secret)

    def _sizes(self) -> dict[str, int]:
        return dict(self._spec.meshes)

    def _arguments(self) -> dict[str, Any]:
        return self._spec.model_dump()

    def _set_arguments(self, saved: dict[str, Any]) -> None:
        self._spec = ProcessSpec.model_validate(saved)

    def _logs(self) -> list[LogFile]:
        if self._ids is None:
            return []
        logs = self._ids["logs"]
        return [LogFile(*host, stream, _log(logs, host, stream)) for host in _hosts(self._spec.meshes) for stream in ("out", "err")]

    def _where(self) -> str:
        return "processes " + ", ".join(str(worker["pid"]) for worker in (self._ids or {}).get("workers", ()))


class ProcessLauncher:
    """Starts the workers; `apply_id` is None where only the plan is asked for, `secret` is asked where some are started again."""

    kind = "process"
    machines_outlive_workers = True

    def __init__(self, meshes: Mapping[str, int], env: Mapping[str, str], apply_id: str | None, secret: Callable[[], bytes]) -> None:
        self._meshes = dict(meshes)
        self._env = dict(env)
        self._apply_id = apply_id
        self._secret = secret

    def plan(self) -> Plan:
        # Values may be secret; the user who runs the plan knows them.
        variables = "".join(f"env {name}=...\n" for name in sorted(self._env))
        lines = [f"{host}: monarch worker --listen ipc://DIRECTORY/{n}.sock\n" for n, host in enumerate(_hosts(self._meshes))]
        return Plan(self.kind, variables + "".join(lines), redacted=bool(self._env))

    def submit(self, plan: Plan, secret: bytes) -> dict[str, Any]:
        ids: dict[str, Any] = {"directory": _make_directory(), "logs": self._make_logs(), "workers": [], "service_procs": ""}
        hosts = _hosts(self._meshes)
        ids["service_procs"] = serialize_service_proc_ids(new_service_proc_id() for _ in hosts)
        try:
            for n, host in enumerate(hosts):
                ids["workers"].append({"mesh": host.mesh, "rank": host.rank, "pid": 0, "start": 0})
                self._start(ids, n, secret)
        except BaseException as e:
            self.cancel(ids)
            if isinstance(e, OSError):
                raise SubmitError(
                    "a worker could not be started", title="process job", cause=str(e), command=f"{sys.executable} -m monarch worker"
                ) from e
            raise
        return ids

    def _make_logs(self) -> str:
        assert self._apply_id is not None
        path = logs_folder(self._apply_id)
        try:
            os.makedirs(path, 0o700, exist_ok=True)
        except OSError:  # the working directory cannot be written: the other files of the job are in the home anyway
            path = os.path.join(credentials.home(), "logs", os.path.basename(path))
            os.makedirs(path, 0o700, exist_ok=True)
        return path

    def _start(self, ids: dict[str, Any], n: int, secret: bytes) -> None:
        worker: dict[str, Any] = ids["workers"][n]
        directory = ids["directory"]
        argv = python_command(_WORKER, "worker", "--listen", f"ipc://{directory}/{n}.sock")
        argv += ["--publish", f"{directory}/{n}.json"]
        identity = {SERVICE_PROC_IDS_ENV: ids["service_procs"], SERVICE_PROC_RANK_ENV: str(n)}
        host = Host(worker["mesh"], worker["rank"])
        assert self._apply_id is not None
        out, err = (_log(ids["logs"], host, stream) for stream in ("out", "err"))
        with _pipe_with(secret) as fd:
            argv += ["--secret-file", f"/dev/fd/{fd}"]
            session = sessions.start(argv, {**sessions.inherited(), **identity, **self._env}, self._apply_id, out, err, [fd])
        worker.update(pid=session.pid, start=session.start)

    def poll(self, ids: dict[str, Any]) -> JobStatus:
        hosts: list[HostStatus] = []
        for worker in ids["workers"]:
            session = _session(worker)
            host_phase: HostPhase = "waiting" if sessions.is_running(session) else "lost"
            code = sessions.exit_code(session)
            detail = (
                "" if code is None else f"its worker ended with exit code {code}" if code >= 0 else f"its worker died of signal {-code}"
            )
            hosts.append(HostStatus(worker["mesh"], worker["rank"], f"pid {worker['pid']}", host_phase, None, detail))
        ended = all(host.phase == "lost" for host in hosts)
        phase: Phase = "ended" if ended else "running"
        return JobStatus(phase, "all workers ended" if ended else "", hosts)

    def addresses(self, ids: dict[str, Any]) -> dict[str, list[str | None]]:
        found: dict[str, list[str | None]] = {mesh: [] for mesh in self._meshes}
        for n, worker in enumerate(ids["workers"]):
            found[worker["mesh"]].append(_published(os.path.join(ids["directory"], f"{n}.json"), worker["pid"]))
        return found

    def relaunch(self, ids: dict[str, Any], lost: list[tuple[str, int]]) -> list[tuple[str, int]]:
        places = {(worker["mesh"], worker["rank"]): n for n, worker in enumerate(ids["workers"])}
        again: list[tuple[str, int]] = []
        for place in lost:
            n = places[place]
            session = _session(ids["workers"][n])
            # A worker that hangs, and its procs, which may outlive it for a moment with the devices that the new ones need.
            if self._end([session]):
                continue
            # The new process is at the same place as the lost one: clients must not take one for the other.
            names = deserialize_service_proc_ids(ids["service_procs"])
            names[n] = new_service_proc_id()
            ids["service_procs"] = serialize_service_proc_ids(names)
            for name in (f"{n}.json", f"{n}.sock"):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(ids["directory"], name))
            self._start(ids, n, self._secret())
            again.append(place)
        return again

    def cancel(self, ids: dict[str, Any]) -> None:
        left = self._end([_session(worker) for worker in ids["workers"] if worker["pid"]])
        if left:
            raise JobError(f"processes do not end: {', '.join(map(str, left))}", title="process job")
        _remove_directory(ids["directory"])

    def _end(self, workers: list[Session]) -> list[int]:
        assert self._apply_id is not None
        return sessions.end(workers, self._apply_id)


_DIRECTORY = "monarch-job-"


def _hosts(meshes: Mapping[str, int]) -> list[Host]:
    return [Host(mesh, rank) for mesh, size in meshes.items() for rank in range(size)]


def _session(worker: dict[str, Any]) -> Session:
    return Session(int(worker["pid"]), int(worker["start"]))


@contextlib.contextmanager
def _pipe_with(secret: bytes) -> Generator[int]:
    """The end of a pipe that the secret can be read from, once: it is in no file that a worker could leave behind."""
    read, write = os.pipe()
    try:
        with open(write, "wb") as f:
            f.write(secret)
        yield read
    finally:
        os.close(read)


def _log(logs: str, host: Host, stream: str) -> str:
    # The name of a mesh may be any text.
    mesh = "".join(letter if letter.isalnum() or letter in "-_" else f"%{ord(letter):x}" for letter in host.mesh)
    return os.path.join(logs, f"{mesh}-{host.rank}.{stream}")


def _make_directory() -> str:
    """For sockets and what the workers publish: 0700, its path short enough for a socket's."""
    path = tempfile.mkdtemp(prefix=_DIRECTORY)
    if len(os.fsencode(path)) + len("/99999.sock") > _SOCKET_PATH:
        os.rmdir(path)
        raise SubmitError(
            f"the temporary directory has too long a path for sockets: {path}", title="process job", hint="set TMPDIR to a shorter one"
        )
    return path


def _remove_directory(path: str) -> None:
    """Removes it if it is one of ours: the content of a file is not trusted that far."""
    if not os.path.basename(path).startswith(_DIRECTORY):
        raise JobError(f"{path} is no directory of workers, and is left alone", title="process job")
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if found.st_uid == os.geteuid():
        shutil.rmtree(path)


def _published(path: str, pid: int) -> str | None:
    """The address in the file that the worker has written; None if it has not yet, or if the file is of the worker before it."""
    try:
        with open(path, encoding="utf-8", errors="replace") as f:
            return published_address(f.read(), pid)
    except FileNotFoundError:
        return None
