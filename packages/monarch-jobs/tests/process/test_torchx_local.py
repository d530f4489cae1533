"""TorchXJob on TorchX's own local scheduler: its processes outlive the client, are found again, healed, ended, and their ends reported."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from eventually import eventually
from torchx.specs import AppDef, Role

from monarch.actor import Actor, endpoint
from monarch.job import JobEndedError, SubmitError, job_load
from monarch.job._machine import sessions
from monarch.job.testing import conformance
from monarch.job.torchx import TorchXJob
from tools.bare_interpreter import run_bare

pytestmark = pytest.mark.timeout(90)  # each job imports TorchX in a process of its own

LATER = """
import sys
from monarch.job import job_load
if __name__ == "__main__":
    job = job_load("state.json")
    print(job.status().phase, sum(host.phase == "joined" for host in job.status().hosts), len(job.state().trainers))
    job.kill()
    job.kill()
    print(job.active)
"""


class Node(Actor):
    @endpoint
    def place(self) -> tuple[str, str | None]:
        return os.getcwd(), os.environ.get("TOKEN")


def application(**changes: Any) -> AppDef:
    trainers = Role("trainers", image="", entrypoint="train.py", env={"TOKEN": "secret"}, num_replicas=2)
    return AppDef("app", [trainers, Role("ps", image="", entrypoint="serve.py", **changes)])


def pids(job: TorchXJob) -> list[int]:
    """What runs for the job on this machine."""
    assert job.apply_id is not None
    return sessions.members(None, job.apply_id)


def test_torchx_found_by_sys_path_suffices() -> None:
    code = """
from monarch.job.torchx.connection import ask
print(ask("local_cwd", "job", "describe", handle="local_cwd://monarch/none"))
"""
    assert run_bare(code) == "None\n"


def test_roles_are_meshes_of_workers() -> None:
    job = TorchXJob(application())
    try:
        state = job.state()
        for name, size in (("trainers", 2), ("ps", 1)):
            answers = state[name].spawn_procs().spawn("node", Node).place.call().get(60).values()
            assert list(answers) == [(os.getcwd(), None)] * size
        assert {(host.mesh, host.rank, host.phase) for host in job.status().hosts} == {
            ("trainers", 0, "joined"),
            ("trainers", 1, "joined"),
            ("ps", 0, "joined"),
        }
        # TorchX's local scheduler replaces the handlers of signals, in its own process.
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        secret = Path(job._directory, "secret").read_bytes()
        for pid in pids(job):
            # A program of a worker may have ended since.
            assert secret.hex().encode() not in _read(Path(f"/proc/{pid}/cmdline")) + _read(Path(f"/proc/{pid}/environ"))
        assert job._ids is not None
        kept = Path(job._ids["directory"], "secret")
        assert (kept.read_bytes(), kept.stat().st_mode & 0o777) == (secret, 0o600)
        assert b"secret" not in kept.with_name("worker.sh").read_bytes().replace(b"secret-file", b"").replace(b"/secret", b"").replace(
            b"SECRET", b""
        )
        folder = Path(job._ids["directory"])
        running = pids(job)
        assert len(running) >= 7  # three scripts, three workers, the process of TorchX
    finally:
        job.kill()
    assert not folder.exists()
    assert [pid for pid in running if os.path.exists(f"/proc/{pid}/exe")] == []


def test_torchx_job_conforms() -> None:
    conformance(lambda: TorchXJob(application()))


def test_fresh_process_finds_it_again_and_kills_it(folder: Path) -> None:
    job = TorchXJob(application())
    try:
        job.apply()
        job.dump("state.json")
        running = pids(job)
        eventually("hosts that listen", job.status, lambda status: all(host.phase == "joined" for host in status.hosts))
        (folder / "later.py").write_text(LATER)
        done = subprocess.run([sys.executable, "later.py"], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (0, "running 3 2\nFalse\n"), done.stderr
        assert pids(job) == []
        assert running
    finally:
        job.kill()


def test_killed_worker_is_healed_in_place() -> None:
    job = TorchXJob(application())
    try:
        job.state()["ps"].initialized.get(60)
        eventually("hosts that listen", job.status, lambda status: all(host.phase == "joined" for host in status.hosts))
        assert job._ids is not None
        hosts = Path(job._ids["directory"], "hosts")
        os.kill(_worker(job, 1), signal.SIGKILL)
        eventually("its end", hosts.joinpath("1.exit").exists, bool)
        lost = job.status().hosts[1]
        assert (lost.mesh, lost.rank, lost.phase, lost.detail) == ("trainers", 1, "lost", "its worker ended with exit code 137")
        report = job.heal(timeout=60)
        assert [(host.mesh, host.rank, host.phase) for host in report.restarted] == [("trainers", 1, "joined")]
        assert not report.missing
        assert len(job.state().trainers.spawn_procs().spawn("node", Node).place.call().get(60)) == 2
    finally:
        job.kill()


def _worker(job: TorchXJob, rank: int) -> int:
    """The pid of a worker: the child of its script that has published."""
    assert job._ids is not None
    return int(json.loads(Path(job._ids["directory"], "hosts", f"{rank}.json").read_text())["pid"])


def test_application_without_its_holder_goes_on() -> None:
    job = TorchXJob(application())
    try:
        job.apply()
        eventually("hosts that listen", job.status, lambda status: all(host.phase == "joined" for host in status.hosts))
        assert job._ids is not None
        holder = sessions.Session(**job._ids["holder"])
        os.kill(holder.pid, signal.SIGKILL)
        eventually("the end of its holder", lambda: sessions.is_running(holder), lambda runs: not runs)
        status = job.status()
        assert (status.phase, status.detail) == ("running", "RUNNING (the process that held the application is gone, its workers go on)")
        left = pids(job)
        assert len(left) >= 6
    finally:
        job.kill()
    assert [pid for pid in left if os.path.exists(f"/proc/{pid}/exe")] == []


def test_missing_interpreter_is_reported_with_role_and_log() -> None:
    job = TorchXJob(application(), python_exe="/no/python")
    try:
        with pytest.raises(JobEndedError) as caught:
            job.state()["trainers"].initialized.get(60)
        error = caught.value
        assert error.state == "FAILED"
        text = str(error)
        assert "torchx job" in text
        assert "trainers[1]: its worker ended with exit code 127" in text
        assert "/no/python: not found" in text
    finally:
        job.kill()


def test_wrong_option_is_refused_before_anything_runs() -> None:
    job = TorchXJob(application(), scheduler_cfg={"log_dirr": "x"})
    with pytest.raises(SubmitError, match=r"has no 'log_dirr'; it has: .*log_dir"):
        job.apply()
    assert not job.active
    assert os.listdir(".monarch/torchx") == []


def test_wrong_type_of_option_is_in_torchx_words() -> None:
    job = TorchXJob(application(), scheduler_cfg={"prepend_cwd": "yes"})
    with pytest.raises(SubmitError, match="prepend_cwd"):
        job.apply()
    assert os.listdir(".monarch/torchx") == []


def test_workspace_that_cannot_be_made_is_named(folder: Path) -> None:
    (folder / "file").write_text("")
    job = TorchXJob(application(), workspace="file/below")
    with pytest.raises(SubmitError, match="file/below"):
        job.apply()


@pytest.mark.parametrize("started", [0, 2])
def test_interrupted_submission_leaves_nothing(folder: Path, started: int) -> None:
    script = """
import glob, signal, sys
from torchx.specs import AppDef, Role
from monarch.job.torchx import TorchXJob
from monarch.job.torchx.connection import Connection
sent = Connection.send
def send(self, what, **more):
    sent(self, what, **more)
    while len(glob.glob(".monarch/torchx/monarch-*.out")) < int(sys.argv[1]):  # polls: workers start
        continue
    print("submitting", flush=True)
    if what == "submit":
        signal.pause()
Connection.send = send
if __name__ == "__main__":
    job = TorchXJob(AppDef("app", [Role("a", image="", entrypoint="x", num_replicas=2)]))
    try:
        job.apply()
    except KeyboardInterrupt:
        print("interrupted", job.active)
"""
    (folder / "client.py").write_text(script)
    with subprocess.Popen([sys.executable, "client.py", str(started)], stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == "submitting\n"
        client.send_signal(signal.SIGINT)
        assert client.stdout.read().splitlines()[-1] == "interrupted False"
    here = str(folder).encode()
    left = [path for path in Path("/proc").glob("[0-9]*/cmdline") if here in _read(path)]
    assert left == []
    assert os.listdir(".monarch/torchx") == []


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_logs_of_replicas_are_listed(folder: Path) -> None:
    job = TorchXJob(application())
    try:
        job.apply()
        eventually("hosts that listen", job.status, lambda status: all(host.phase == "joined" for host in status.hosts))
        job.dump("state.json")
        found = {(log.mesh, log.rank, log.stream): log.path for log in job_load("state.json")._logs()}
        assert "listening at" in Path(found["trainers", 1, "out"]).read_text()
        os.chdir("/")
        assert {(log.mesh, log.rank, log.stream): log.path for log in job._logs()} == found
    finally:
        os.chdir(folder)
        job.kill()
