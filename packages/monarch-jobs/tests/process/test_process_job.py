"""ProcessJob with real workers: hosts that run actors, outlive the script, are found again, lost, healed and killed."""

from __future__ import annotations

import asyncio
import base64
import os
import signal
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from command import monarch
from eventually import eventually
from file_job import FileJob
from fresh_script import run as run_fresh
from fresh_script import wait_for_end

from monarch.actor import Actor, SupervisionError, endpoint
from monarch.job import DEFAULT_JOB_PATH, JobTrait, LocalJob, ProcessJob, hosts_from_config, job_load
from monarch.job._job.trait import current
from monarch.job._machine.sessions import members as session_members
from monarch.job.testing import conformance
from tools.bare_interpreter import run_bare


class Where(Actor):
    @endpoint
    def pids(self) -> tuple[int, int]:
        return os.getpid(), os.getsid(0)

    @endpoint
    def variable(self, name: str) -> str | None:
        return os.environ.get(name)


def test_packages_found_by_sys_path_suffice() -> None:
    code = """
from monarch.job import ProcessJob
job = ProcessJob({"hosts": 1})
try:
    print(job.state(None).hosts.spawn_procs({"a": 2}).initialized.get(20))
finally:
    job.kill()
"""
    assert run_bare(code) == "True\n"


def test_kill_in_a_coroutine_does_not_warn(ended: Callable[[JobTrait], Any]) -> None:
    async def main() -> None:
        job = ended(ProcessJob({"hosts": 1}))
        await job.state(cached_path=None).hosts.initialized
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            job.kill()

    asyncio.run(main())


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Kills the cached job, whichever process made it."""
    yield
    if os.path.exists(DEFAULT_JOB_PATH):
        job_load().kill()


def sessions(job: JobTrait) -> list[int]:
    job = current(job)
    assert isinstance(job, ProcessJob) and job._ids is not None
    return [worker["pid"] for worker in job._ids["workers"]]


def test_process_job_conforms() -> None:
    conformance(lambda: ProcessJob({"a": 2, "b c": 1}))


def test_each_state_has_meshes_of_its_own(ended: Callable[[Any], Any]) -> None:
    job = ended(ProcessJob({"a": 1}))
    first, second = job.state(None), job.state(None)
    assert first.a == second.a and hash(first.a) == hash(second.a)
    mine, others = (state.a.spawn_procs().spawn("where", Where) for state in (first, second))
    assert mine.pids.call_one().get() != others.pids.call_one().get()
    first.a.stop().get()
    with pytest.raises(SupervisionError, match="host mesh stopped"):
        mine.pids.call_one().get()
    assert others.pids.call_one().get()
    # The hosts end, and with them the procs of all objects.
    first.a.shutdown().get()
    with pytest.raises(SupervisionError, match="host mesh shut down"):
        others.pids.call_one().get()


def test_meshes_of_one_machine_stop_apart() -> None:
    state = LocalJob(("a", "b")).state(None)
    mine, others = (mesh.spawn_procs().spawn("where", Where) for mesh in (state.a, state.b))
    mine.pids.call_one().get()
    state.a.stop().get()
    with pytest.raises(SupervisionError, match="host mesh stopped"):
        mine.pids.call_one().get()
    assert others.pids.call_one().get()
    state.b.stop().get()


def test_hosts_run_actors(ended: Callable[[Any], Any]) -> None:
    job = ended(ProcessJob({"trainers": 2, "data": 1}, {"FOR_HOSTS": "yes"}))
    state = job.state(None)
    procs = state.trainers.spawn_procs({"gpus": 2})
    assert str(procs.extent) == "{hosts: 2, gpus: 2}"
    where = procs.spawn("where", Where)
    found = [pids for _, pids in where.pids.call().get().items()]
    assert len({pid for pid, _ in found}) == 4
    # Each proc is in its host's session, so it ends with it.
    assert [session for _, session in found] == [pid for pid in sessions(job)[:2] for _ in range(2)]
    assert set(where.variable.call("FOR_HOSTS").get().values()) == {"yes"}
    assert os.environ.get("FOR_HOSTS") is None
    assert [host.phase for host in job.status().hosts] == ["joined"] * 3
    members = session_members(set(sessions(job)), job.apply_id)
    assert {pid for pid, _ in found} < set(members)
    fds = [os.pidfd_open(pid) for pid in members]
    try:
        job.kill()
        assert [pid for pid in members if not wait_for_end(pid)] == []
    finally:
        for fd in fds:
            os.close(fd)


def test_secret_is_in_no_command_file_or_environment(ended: Callable[[Any], Any]) -> None:
    job = ended(ProcessJob({"a": 2}))
    job.state("x.json").a.initialized.get()
    secret = Path(job._directory, "secret").read_bytes()
    assert len(secret) == 32
    forms = [secret, secret.hex().encode(), base64.b64encode(secret)]
    members = session_members(set(sessions(job)), job.apply_id)
    told = [Path(f"/proc/{pid}/{name}").read_bytes() for pid in members for name in ("cmdline", "environ")]
    files = [path for root in (job._ids["directory"], job._ids["logs"]) for path in Path(root).rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {"0.json", "1.json", "a-0.out"}
    told += [path.read_bytes() for path in (*files, Path("x.json"))]
    assert not [form for form in forms if any(form in text for text in told)]
    # A restarted worker gets the secret in the same way.
    fd = os.pidfd_open(sessions(job)[0])
    os.kill(sessions(job)[0], signal.SIGKILL)
    assert wait_for_end(sessions(job)[0])
    os.close(fd)
    eventually("the host is lost", lambda: job.status().hosts[0].phase, lambda phase: phase == "lost")
    report = job.heal()
    assert len(report.restarted + report.replaced) == 1


APPLIES = """
from monarch.actor import Actor, endpoint
from monarch.job import ProcessJob

class Where(Actor):
    @endpoint
    def session(self):
        return os.getsid(0)

job = ProcessJob({"a": 2})
where = job.state().a.spawn_procs().spawn("where", Where)
print(job.apply_id, *where.session.call().get().values())
"""


def test_next_script_gets_the_same_hosts(folder: Path) -> None:
    (folder / "script.py").write_text("import os\n" + APPLIES)
    outputs = [_python("script.py") for _ in range(2)]
    job = job_load()
    assert outputs[0] == outputs[1]
    assert outputs[0].split()[0] == job.apply_id
    assert [int(word) for word in outputs[0].split()[1:]] == sessions(job)


def _python(path: str) -> str:
    import subprocess
    import sys

    done = subprocess.run([sys.executable, "-W", "error", path], capture_output=True, text=True, check=False, timeout=25)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_lost_host_is_healed(ended: Callable[[Any], Any], folder: Path) -> None:
    job = ended(ProcessJob({"a": 2}))
    old = job.state("x.json").a
    where = old.spawn_procs().spawn("where", Where)
    where.pids.call().get()
    before = sessions(job)
    fd = os.pidfd_open(before[1])
    os.kill(before[1], signal.SIGKILL)
    assert wait_for_end(before[1])
    os.close(fd)
    with pytest.raises(SupervisionError):
        where.slice(hosts=1).pids.call_one().get()
    assert [host.phase for host in job.status().hosts] == ["joined", "lost"]
    report = job.heal()
    assert ([(host.mesh, host.rank) for host in report.restarted + report.replaced], report.missing) == ([("a", 1)], [])
    after = sessions(job)
    assert after[0] == before[0] and after[1] != before[1]
    with pytest.raises(SupervisionError):
        where.slice(hosts=1).pids.call_one().get()
    # The next script has both jobs.
    (folder / "script.py").write_text("import os\n" + APPLIES.replace("state()", "state('x.json')"))
    assert [int(word) for word in _python("script.py").split()[1:]] == after


def test_local_reproduction(ended: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONARCH_JOB", "process")
    monkeypatch.setenv("MONARCH_JOB_SHRINK", "2")
    job = ended(FileJob("alloc", 7, "trainers"))
    assert str(job.state(None).trainers.extent) == "{hosts: 2}"
    assert not os.path.exists("alloc")
    assert job.active
    job.kill()
    assert not job.active


def test_hosts_by_name_alone() -> None:
    script = "from monarch.actor import hosts_from_config\nmesh = hosts_from_config('hosts')\nprint(mesh.extent)\nmesh.initialized.get()\n"
    done = run_fresh(script, env={"MONARCH_HOME": os.environ["MONARCH_HOME"]})
    assert (done.code, done.left) == (0, []), done
    assert done.out == "{hosts: 2}\n"


def test_hosts_of_the_current_job(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from monarch.job import set_current_job

    (folder / "current_specs.py").write_text("from monarch.job import LocalJob\njob = LocalJob(('a',))\n")
    monkeypatch.syspath_prepend(str(folder))
    set_current_job("current_specs.job")
    assert hosts_from_config("a") == LocalJob(("a",)).state(None).a
    with pytest.raises(KeyError, match="no mesh 'b' in this job"):
        hosts_from_config("b")


def test_job_is_applied_and_killed_by_command(folder: Path) -> None:
    (folder / "specs.py").write_text("from monarch.job import ProcessJob\njob = ProcessJob({'a': 2, 'b': 1})\n")
    code, out, err = monarch("apply", "specs.job")
    assert code == 0, err
    assert ": a (2), b (1) ready after " in out
    try:
        code, out, err = monarch("status")
        assert (code, err) == (0, "")
        assert [line.split()[0] for line in out.splitlines()[1:]] == ["HOST", "a[0]", "a[1]", "b[0]"]
        code, out, err = monarch("logs", "--mesh", "b")
        assert (code, out.startswith("listening at ipc://")) == (0, True)
        pids = sessions(job_load())
        os.kill(pids[0], signal.SIGKILL)
        assert wait_for_end(pids[0])
        code, out, err = monarch("heal")
        assert (code, err) == (0, ""), out
        assert "a[0]" in out
        pids = sessions(job_load())
    finally:
        assert monarch("kill")[0] == 0
    assert [pid for pid in pids if not wait_for_end(pid)] == []
    assert monarch("status")[0] == 3
