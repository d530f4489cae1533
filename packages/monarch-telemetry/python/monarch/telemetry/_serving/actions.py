"""What is done to a job by the process that serves it: what that process owns, its job, its queries, and procs by their collectors.

Files with the state of a process, for bug reports, are masked, for their user alone, and only the newest.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from monarch.actor import MonarchError, dump_state
from monarch.extension import member
from monarch.extension.masking import Masking
from monarch.extension.mesh import owned_meshes, stop_mesh
from monarch.telemetry._engine.engine import Engine, Host
from monarch.telemetry._engine.host import reason as reason_of
from monarch.telemetry._http.models import ActionAnswer
from monarch.telemetry._http.problems import Problem
from monarch.telemetry._http.references import ROOT
from monarch.telemetry._serving.procs import Procs

if TYPE_CHECKING:
    from monarch.job import JobControl

# Levels of `logging` of Python, by the names of the API.
LEVELS = {"trace": 5, "debug": 10, "info": 20, "warn": 30, "error": 40, "off": 60}
# The most seconds of single actions: their requests have a little more.
_ONE_PROC, _STOP, _HEAL = 10.0, 50.0, 110.0
# Characters of the id of a job that identify it.
_SHORT = 8


class JobActions:
    """See `monarch.telemetry._http.parts.Actions`. `job` is what the job of this process can be asked for, None where it has none.

    States of processes are written into `dumps`, masked by `masking`.
    """

    def __init__(self, engine: Engine, procs: Procs, dumps: Path, masking: Masking, job: JobControl | None = None) -> None:
        self._engine, self._procs, self._job = engine, procs, job
        self._dumps, self._masking = dumps, masking

    # ---- procs

    def kill_proc(self, proc_id: int) -> ActionAnswer:
        return self._signal(proc_id, signal.SIGKILL)

    def signal_proc(self, proc_id: int, signal: int) -> ActionAnswer:
        return self._signal(proc_id, signal)

    def _signal(self, proc_id: int, number: int) -> ActionAnswer:
        refused = self._procs.ask(proc_id, "send_signal", proc_id, number, timeout=_ONE_PROC)
        return {"done": refused is None, "detail": refused or f"signal {number} was sent to proc {proc_id}"}

    def set_log_level(self, proc_id: int | None, level: str) -> ActionAnswer:
        number = LEVELS[level]
        if proc_id is not None:
            refused = self._procs.ask(proc_id, "set_log_level", proc_id, number, timeout=_ONE_PROC)
            return {"done": refused is None, "detail": refused or f"the log level of proc {proc_id} is {level}"}
        hosts = self._engine.hosts
        with ThreadPoolExecutor(max(1, min(len(hosts), 16))) as threads:
            found = list(threads.map(partial(self._level_of_host, number), hosts))
        failed = [text for _, text in found if text]
        count = sum(procs for procs, _ in found)
        detail = f"the log level of {count} proc{'s' * (count != 1)} is {level}"
        return {"done": not failed, "detail": "; ".join([detail, *failed])}

    def _level_of_host(self, level: int, host: Host) -> tuple[int, str]:
        try:
            count, refused = host.start(_ONE_PROC).set_log_levels.call_one(level).get(timeout=_ONE_PROC)
        except (MonarchError, TimeoutError) as error:
            return 0, f"{host.name}: {reason_of(error)}"
        return count, f"{host.name}: {refused}" if refused else ""

    def dump_state(self, proc_id: int | None) -> ActionAnswer:
        own = int(member().proc)
        proc = own if proc_id is None else proc_id
        if proc == own:
            found = {"state": dump_state()}
        else:
            found = json.loads(self._procs.ask(proc, "dump_state", proc, _ONE_PROC, timeout=_ONE_PROC + 2.0))
        if "error" in found:
            return {"done": False, "detail": f"proc {proc} does not give its state: {found['error']}"}
        try:
            path = write(self._dumps, f"proc-{proc}", self._masking.json(found["state"]))
        except OSError as error:
            return {"done": False, "detail": f"the state of proc {proc} cannot be written: {error}"}
        return {"done": True, "detail": f"the state of proc {proc} is in {path} on {member().hostname}"}

    # ---- meshes

    def stop_mesh(self, mesh: str, *, reason: str | None) -> ActionAnswer:
        number, name = self._mesh(mesh)
        try:
            stopping = stop_mesh(number, reason or "stopped by an action of the telemetry API")
        except LookupError:
            raise _not_owned(name) from None
        try:
            stopping.get(timeout=_STOP)
        except TimeoutError:
            return {"done": False, "detail": f"{name} is still stopping after {_STOP:g} s"}
        except MonarchError as error:
            return {"done": False, "detail": f"{name} has stopped with a failure: {error}"}
        return {"done": True, "detail": f"{name} is stopped"}

    def _mesh(self, mesh: str) -> tuple[int, str]:
        """Number and full name of a mesh that this process owns, by number, full name or given name. `Problem` where it is not one."""
        text = "'" + mesh.replace("'", "''") + "'"
        of = f"full_name = {text} OR given_name = {text} OR CAST(id AS VARCHAR) = {text}"
        rows = self._engine.ask(f"SELECT id, class, full_name FROM meshes WHERE {of}").table.to_pylist()
        # Snapshots of several hosts may have the same mesh.
        known = {row["id"]: row for row in rows}
        if not known:
            raise Problem.not_found(f"there is no mesh {mesh!r}")
        if all(row["class"] == "Host" for row in known.values()):
            raise Problem.unavailable(f"{mesh} is a mesh of hosts, which end with their job: kill_job, or `monarch kill`")
        owned = {one.mesh: one for one in owned_meshes()}
        mine = [row for number, row in known.items() if number in owned and not owned[number].is_stopping]
        if not mine:
            raise _not_owned(next(iter(known.values()))["full_name"])
        if len(mine) > 1:
            names = ", ".join(f"{row['full_name']} ({row['id']})" for row in mine)
            raise Problem.bad_request(f"{mesh!r} is the name of several meshes: {names}\nhint: name one by its number")
        return mine[0]["id"], str(mine[0]["full_name"])

    # ---- the job

    def heal_job(self, job: str) -> ActionAnswer:
        control = self._control(job, "jobs are healed by their program or by `monarch heal`")
        try:
            report = control.heal(timeout=_HEAL)
        except (MonarchError, TimeoutError, OSError) as error:
            return {"done": False, "detail": f"{control.title} is not healed: {error}"}
        lost = [str(one.name or f"{one.mesh}[{one.rank}]") for one in report.missing]
        detail = f"hosts restarted: {len(report.restarted)}, replaced: {len(report.replaced)}, missing: {len(lost)}"
        if lost:
            detail += f" ({', '.join(lost)})"
        if report.restarted or report.replaced:
            detail += "; the next state() of the program has them"
        return {"done": not lost, "detail": detail}

    def kill_job(self, job: str, *, reason: str | None) -> ActionAnswer:
        control = self._control(job, "jobs are ended by their program or by `monarch kill`")

        def kill() -> None:
            try:
                control.kill()
            except Exception as error:  # this thread is the last that could report it
                import sys

                print(f"monarch: {control.title} was not killed completely: {error}", file=sys.stderr, flush=True)

        # The end of the job also ends this server, after the answers in progress.
        threading.Thread(target=kill, name="monarch-telemetry-kill", daemon=True).start()
        return {"done": True, "detail": f"{control.title} is being killed{f': {reason}' if reason else ''}"}

    def _control(self, job: str, otherwise: str) -> JobControl:
        control = self._job
        if control is None:
            raise Problem.unavailable(otherwise)
        if job not in (str(ROOT), control.apply_id, control.apply_id[:_SHORT], control.title):
            raise Problem.not_found(f"there is no job {job!r}: this process serves {control.title}")
        return control

    # ---- queries

    def cancel_query(self, query: str) -> ActionAnswer:
        if not query.isascii() or not query.isdecimal() or not self._engine.running.cancel(int(query)):
            raise Problem.not_found(f"there is no query {query!r} in progress\nhint: GET /v1/queries lists them")
        return {"done": True, "detail": f"query {query} is cancelled"}


def _not_owned(name: str) -> Problem:
    return Problem.unavailable(
        f"{name} is not a mesh of the process that serves: only the owner of a mesh stops it, by `stop()` of its handle"
    )


# The most files in the folder.
KEPT = 32


def write(folder: Path, name: str, text: str) -> Path:
    """Writes a file of this name and the time; its path. The oldest of the folder go. `OSError`."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"{name}-{time.time_ns()}.json"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(text)
    for old in sorted(folder.glob("*.json"), key=lambda one: one.name.rpartition("-")[2])[:-KEPT]:
        old.unlink(missing_ok=True)
    return path
