"""AttachJob with real workers that another process has started."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fresh_script import wait_for_end
from worker_processes import Workers

from monarch.actor import Actor, AttachError, AuthenticationError, SupervisionError, endpoint
from monarch.job import AttachJob, CredentialsError, JobError, JobState, ProcessJob, job_load


class Where(Actor):
    @endpoint
    def parent(self) -> int:
        with open(f"/proc/{os.getppid()}/stat", encoding="ascii") as f:
            return int(f.read().rpartition(")")[2].split()[1])


@pytest.fixture
def workers() -> Iterator[Workers]:
    with Workers(2, "tls") as found:
        yield found


def attach_job(workers: Workers) -> AttachJob:
    return AttachJob({"a": workers.addresses[:1], "b": workers.addresses[1:]}, credentials=str(workers.secret))


def agents(state: JobState) -> list[int]:
    """The pids of the workers, by what runs on them."""
    found: list[int] = []
    for name in state:
        found += state[name].spawn_procs().spawn("where", Where).parent.call().get().values()
    return found


def pids(workers: Workers) -> list[int]:
    return [process.pid for process in workers.processes]


SCRIPT = """
from monarch.actor import Actor, endpoint
from monarch.job import job_load

class Where(Actor):
    @endpoint
    def host(self):
        return 1

job = job_load("state.json")
for mesh in ("a", "b"):
    print(*job.state()[mesh].spawn_procs().spawn("where", Where).host.call().get().values())
"""


def test_hosts_run_actors_and_outlive_the_job(workers: Workers, folder: Path) -> None:
    job = attach_job(workers)
    state = job.state("state.json")
    assert agents(state) == pids(workers)
    assert job.state("state.json").a == state.a
    assert stat.S_IMODE(os.stat("state.json").st_mode) == 0o600
    saved = Path("state.json").read_text()
    assert workers.secret.read_text() not in saved and workers.addresses[0] in saved
    # Another client, at the same time.
    (folder / "script.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, "-W", "error", "script.py"], capture_output=True, text=True, check=False, timeout=25)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n1\n", "")
    loaded = job_load("state.json")
    assert loaded.can_run(attach_job(workers)) and not loaded.can_run(AttachJob({"a": workers.addresses}))
    assert [(host.mesh, host.address) for host in job.status().hosts] == list(zip("ab", workers.addresses, strict=True))
    job.kill()
    assert not os.path.exists("state.json") and not job.active
    assert [process.poll() for process in workers.processes] == [None, None]
    assert agents(attach_job(workers).state(None)) == pids(workers)


def test_secret_comes_from_the_environment(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONARCH_JOB_SECRET_FILE", str(workers.secret))
    assert agents(AttachJob({"a": workers.addresses}).state(None)) == pids(workers)


def test_addresses_with_the_identity_of_the_agent(workers: Workers) -> None:
    first, second = (f"worker<{said['uid']}>@{said['address']}" for said in workers.published)
    assert agents(AttachJob({"a": [first, second]}, credentials=str(workers.secret)).state(None)) == pids(workers)
    wrong = f"{first.partition('@')[0]}@{workers.addresses[1]}"
    with pytest.raises(AttachError, match="another agent answers at this address"):
        AttachJob({"a": [wrong]}, credentials=str(workers.secret)).state(None).a.initialized.get()


def test_bad_credentials(workers: Workers, tmp_path: Path) -> None:
    other = tmp_path / "other"
    with pytest.raises(CredentialsError, match="is missing"):
        AttachJob({"a": workers.addresses}, credentials=str(other)).state()
    other.write_text("0" * 64)
    with pytest.raises(CredentialsError, match="is open to others"):
        AttachJob({"a": workers.addresses}, credentials=str(other)).state()
    assert not os.path.exists(".monarch/job_state.json")
    other.chmod(0o600)
    with pytest.raises(AuthenticationError):
        AttachJob({"a": workers.addresses}, credentials=str(other)).state(None).a.initialized.get()
    with pytest.raises(ValueError, match="needs one of: secret="):
        AttachJob({"a": workers.addresses}).state(None)
    with pytest.raises(JobError, match="attach jobs run no client script"):
        attach_job(workers).apply(client_script="script.py")


def test_restarted_worker_is_attached_again(workers: Workers) -> None:
    job = attach_job(workers)
    state = job.state(None)
    where = state.b.spawn_procs().spawn("where", Where)
    kept = state.a.spawn_procs().spawn("where", Where)
    assert [kept.parent.call_one().get(), where.parent.call_one().get()] == pids(workers)
    workers.processes[1].kill()
    workers.processes[1].wait()
    with pytest.raises(SupervisionError):
        where.parent.call_one().get()
    # No process has replaced the host.
    report = job.heal(timeout=0.2)
    assert (report.restarted, report.replaced) == ([], [])
    assert [(host.mesh, host.rank, host.phase) for host in report.missing] == [("b", 0, "lost")]
    place = workers.addresses[1]
    number = workers.start("--listen", place)
    assert workers.addresses[number] == place
    assert job.heal() == ([], [], [])
    assert agents(job.state(None)) == [workers.processes[0].pid, workers.processes[number].pid]
    # Old handles keep failing for lost hosts, and only for those.
    with pytest.raises(SupervisionError):
        where.parent.call_one().get()
    assert kept.parent.call_one().get() == workers.processes[0].pid


def test_hosts_that_are_healed_in_the_same_client(folder: Path) -> None:
    """Those that were there stay what they are, whether their addresses were known when they were attached or came later."""
    job = ProcessJob({"a": 2})
    try:
        state = job.state("x.json")
        before = agents(state)
        kept = state.a.slice(hosts=0).spawn_procs().spawn("kept", Where)
        assert kept.parent.call_one().get() == before[0]
        fd = os.pidfd_open(before[1])
        os.kill(before[1], signal.SIGKILL)
        assert wait_for_end(before[1])
        os.close(fd)
        report = job.heal()
        assert [(host.mesh, host.rank) for host in report.restarted + report.replaced] == [("a", 1)]
        after = agents(job.state("x.json"))
        assert after[0] == before[0] and after[1] != before[1]
        assert kept.parent.call_one().get() == before[0]
    finally:
        job.kill()
