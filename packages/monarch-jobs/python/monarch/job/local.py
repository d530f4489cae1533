"""The machine of the script itself as a job, and the job that surrounds a script."""

from __future__ import annotations

import atexit
import json
import os
import sys
from typing import TYPE_CHECKING, Any

from monarch import actor
from monarch.job._files.contexts import logs_folder
from monarch.job._files.state_file import DEFAULT_JOB_PATH
from monarch.job._job import hooks
from monarch.job._job.job_state import JobState, check_mesh_names
from monarch.job._job.launcher import HealReport, JobStatus, LogFile, Plan
from monarch.job._job.saved import decode, encode, load_if_there, write
from monarch.job._job.trait import BATCH, BATCH_FILE, JobTrait, current, is_alive
from monarch.job._machine import sessions
from monarch.job._machine.notice import notice
from monarch.job._machine.sessions import Session
from monarch.job.errors import JobError, SubmitError

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Sequence

# Becomes the script once a byte permits it to begin; without the byte, the process that started it failed or died before.
_GATED = """
import os, sys
gate, script = int(sys.argv[1]), sys.argv[2]
begun = os.read(gate, 1)
os.close(gate)
if begun:
    os.execv(sys.executable, [sys.executable, script])
sys.exit(1)
"""


class LocalJob(JobTrait):
    """The machine of the client under each name, without workers. `apply(client_script=...)` runs the script detached.

    The output of a detached script is in `.monarch/logs/job_*`.

    Args:
        hosts: the names of the meshes.

    ```python
    from monarch.job import LocalJob

    job = LocalJob(["trainers"])
    with job.state(cached_path=None).trainers.spawn_procs({"gpus": 2}) as procs:
        assert procs.sizes["gpus"] == 2
    job.kill()
    ```
    """

    __module__ = "monarch.job"
    kind = "local"

    def __init__(self, hosts: Sequence[str] = ("hosts",)) -> None:
        super().__init__()
        if isinstance(hosts, str):
            raise TypeError("hosts are several names, not one text")
        self._hosts = tuple(hosts)
        if not self._hosts:
            raise ValueError("a job has at least one mesh")
        check_mesh_names(self._hosts)
        if len(set(self._hosts)) < len(self._hosts):
            raise ValueError(f"two meshes have one name: {', '.join(self._hosts)}")
        self._script: dict[str, Any] | None = None

    @property
    def process(self) -> subprocess.Popen[bytes] | None:
        """The batch client, if this object has started one."""
        session = self._session()
        return None if session is None else sessions.child(session)

    def plan(self) -> Plan:
        return Plan(self.kind, "".join(f"mesh {name}: the machine of the client\n" for name in self._hosts))

    def can_run(self, spec: JobTrait) -> bool:
        # A new job has everything that this one has.
        return False

    def _create(self, client_script: str | None) -> None:
        if client_script is None:
            return
        script = os.path.abspath(client_script)
        if not os.path.isfile(script):
            raise SubmitError(f"no such script: {client_script}", title=self._title)
        assert self.apply_id is not None
        logs = logs_folder(self.apply_id)
        os.makedirs(logs, 0o700, exist_ok=True)
        state = os.path.abspath(DEFAULT_JOB_PATH)
        env = {**os.environ, BATCH: "1", BATCH_FILE: state}
        out, err = os.path.join(logs, "client.out"), os.path.join(logs, "client.err")
        # The script looks for the file as soon as it runs, and the file names the script: a pipe lets it begin.
        gate, opened = os.pipe()
        try:
            argv = [sys.executable, "-c", _GATED, str(gate), script]
            session = sessions.start(argv, env, self.apply_id, out, err, keep=(gate,))
            self._script = {"path": script, "pid": session.pid, "start": session.start, "logs": logs}
            self.__core__.active = True
            write(DEFAULT_JOB_PATH, BatchJob(self))
            os.write(opened, b"!")
        finally:
            os.close(gate)
            os.close(opened)

    def _session(self) -> Session | None:
        return None if self._script is None else Session(self._script["pid"], self._script["start"])

    def _state(self) -> JobState:
        return JobState(dict.fromkeys(self._hosts, actor.this_host()))

    def _poll(self) -> JobStatus:
        session = self._session()
        if session is None:
            # Without a script nothing outlives the client.
            alive = self.__core__.path is None or not self.__core__.loaded
            return JobStatus("running", "the machine of the client", []) if alive else JobStatus("ended", "its client is gone", [])
        if sessions.is_running(session):
            return JobStatus("running", f"script {self._where()}", [])
        code = sessions.exit_code(session)
        return JobStatus("ended", f"script {self._where()} {'ended' if code is None else f'ended with exit code {code}'}", [])

    def _kill(self) -> None:
        session = self._session()
        # At the exit of the script itself, the processes are ending already.
        if session is None or session.pid == os.getpid():
            return
        assert self.apply_id is not None
        left = sessions.end([session], self.apply_id)
        if left:
            raise JobError(f"processes do not end: {', '.join(map(str, left))}", title=self._title)
        self._script = None

    def _needs_kill_at_exit(self) -> bool:
        # Children of the script connect too; their exit is not the end of the script.
        session = self._session()
        return session is None or session.pid == os.getpid()

    def _sizes(self) -> dict[str, int]:
        return dict.fromkeys(self._hosts, 1)

    def _logs(self) -> list[LogFile]:
        if self._script is None:
            return []
        return [LogFile("client", 0, stream, os.path.join(self._script["logs"], f"client.{stream}")) for stream in ("out", "err")]

    def _where(self) -> str:
        return "this machine" if self._script is None else f"{self._script['path']} (pid {self._script['pid']})"

    def _dump(self) -> dict[str, Any]:
        return {"arguments": {"hosts": list(self._hosts)}, "script": self._script}

    def _load(self, saved: dict[str, Any]) -> None:
        LocalJob.__init__(self, saved["arguments"]["hosts"])
        self._script = saved.get("script")


class BatchJob(JobTrait):
    """The allocation that surrounds a script: it ends with the script. Other processes that connect to it leave it running."""

    __module__ = "monarch.job"
    kind = "batch"

    def __init__(self, job: JobTrait) -> None:
        super().__init__()
        self.job_ = job
        self.__core__.apply_id = job.apply_id
        self.__core__.active = job.active

    def plan(self) -> Plan:
        return self.job_.plan()

    def can_run(self, spec: JobTrait) -> bool:
        return self.job_.can_run(spec)

    def _create(self, client_script: str | None) -> None:
        raise JobError("is the allocation around a script, and cannot be submitted", title=self._title)

    def _state(self) -> JobState:
        return self.job_._state()

    def _surround(self) -> JobState:
        """The hosts for a script inside the allocation, whose exit is the end of the allocation."""
        # The handler runs before the client's own exit: exit handlers run in reverse order.
        state = self._state()
        atexit.unregister(self._kill_at_exit)
        atexit.register(self._kill_at_exit)
        return state

    def _kill_at_exit(self) -> None:
        if not hooks.needs_kill_at_exit(self.job_):
            return
        try:
            self.kill()
        except JobError as e:
            notice(f"monarch: {e}")

    def _stop_work(self) -> None:
        self.job_._stop_work()

    def _kill(self) -> None:
        self.job_._kill()

    def _poll(self) -> JobStatus:
        return self.job_._poll()

    def _heal(self, timeout: float | None) -> HealReport:
        return self.job_._heal(timeout)

    def _take_over(self, other: JobTrait) -> None:
        assert isinstance(other, BatchJob)
        self.job_._take_over(other.job_)

    def _sizes(self) -> dict[str, int]:
        return self.job_._sizes()

    def _logs(self) -> list[LogFile]:
        return self.job_._logs()

    def _where(self) -> str:
        return self.job_._where()

    def _dump(self) -> dict[str, Any]:
        return {"job": json.loads(encode(current(self.job_)))}

    def _load(self, saved: dict[str, Any]) -> None:
        self.job_ = decode(json.dumps(saved["job"]).encode(), JobTrait, "the surrounding job")
        self.job_.__core__.inside = self


def batch_path(job: JobTrait) -> str | None:
    """Where a job with a client script is saved for the commands; None where another job that is alive is the current one."""
    kept = load_if_there(DEFAULT_JOB_PATH, JobTrait)
    return None if kept is not None and kept.apply_id != job.apply_id and is_alive(kept) else DEFAULT_JOB_PATH
