"""LocalJob: this machine, and scripts that run detached."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from monarch.job import DEFAULT_JOB_PATH, BatchJob, JobError, LocalJob, SubmitError, job_load

SCRIPT = """
import os, signal, sys
from monarch.job import LocalJob
state = LocalJob(("a",)).state()
assert str(state.a.extent) == "{}", state.a.extent
print(sys.argv, __name__, os.environ["MONARCH_BATCH_JOB"], flush=True)
open("ready", "w").close()
"""


def finished(job: LocalJob) -> int:
    assert job.process is not None
    return job.process.wait()


def logs(job: LocalJob) -> dict[str, str]:
    return {log.stream: Path(log.path).read_text() for log in job._logs()}


def test_detached_script_runs_in_the_cached_job(folder: Path) -> None:
    (folder / "script.py").write_text(SCRIPT)
    job = LocalJob(("a",))
    assert job.process is None
    job.apply(client_script="script.py")
    assert job.active
    cached = job_load()
    assert isinstance(cached, BatchJob)
    assert cached.apply_id == job.apply_id
    assert finished(job) == 0
    found = logs(job)
    assert (found["out"], found["err"]) == (f"{[str(folder / 'script.py')]} __main__ 1\n", "")
    assert os.listdir(".monarch/logs") == [f"job_{job.apply_id}"] if job.apply_id else True
    # The script killed its job when it ended.
    assert not os.path.exists(DEFAULT_JOB_PATH)
    assert job.status().phase == "ended"


def test_kill_ends_the_script(folder: Path) -> None:
    (folder / "script.py").write_text("import signal\nprint('on', flush=True)\nsignal.pause()\n")
    job = LocalJob()
    job.apply("script.py")
    assert job.status().phase == "running"
    loaded = job_load()
    assert loaded.status().phase == "running"
    process = job.process
    assert process is not None
    loaded.kill()
    assert process.wait() == -signal.SIGTERM
    assert job.status().phase == "ended"
    job.kill()
    assert not job.active
    assert not os.path.exists(DEFAULT_JOB_PATH)


APPLIES = """
import os
from monarch.job import LocalJob
job = LocalJob()
job.apply("script.py")
print(job.process.pid, flush=True)
os._exit(0)
"""


def test_script_outlives_its_client(folder: Path) -> None:
    (folder / "script.py").write_text("import signal\nopen('gate', 'w').write('on')\nsignal.pause()\n")
    (folder / "client.py").write_text(APPLIES)
    os.mkfifo("gate")
    done = subprocess.run([sys.executable, "-W", "error", "client.py"], capture_output=True, text=True, check=False, timeout=25)
    assert (done.returncode, done.stderr) == (0, "")
    # The client is gone before the script can report this.
    assert Path("gate").read_text() == "on"
    job = job_load()
    assert isinstance(job, BatchJob)
    assert job.status() == ("running", f"script {folder / 'script.py'} (pid {int(done.stdout)})", [])
    fd = os.pidfd_open(int(done.stdout))
    job.kill()
    assert select.select([fd], [], [], 20)[0]
    os.close(fd)


def test_missing_script_is_refused(folder: Path) -> None:
    job = LocalJob()
    with pytest.raises(SubmitError, match="no such script: nowhere.py"):
        job.apply("nowhere.py")
    assert not job.active
    assert os.listdir(folder) == []


def test_script_does_not_start_without_its_state_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "script.py").write_text("open('begun', 'w').close()\n")
    os.mkdir(".monarch")
    os.mkdir(DEFAULT_JOB_PATH)
    job = LocalJob()
    with pytest.raises(JobError, match="is not a file"):
        job.apply("script.py")
    assert not job.active
    assert not os.path.exists("begun")


def test_two_names_are_one_machine() -> None:
    job = LocalJob(("a", "b-c"))
    state = job.state(None)
    assert state.a == state["b-c"]
    with pytest.raises(AttributeError, match="no mesh 'x' in this job, there is: 'a', 'b-c'"):
        _ = state.x
    with pytest.raises(KeyError, match="no mesh 'x'"):
        state["x"]
    assert not job.can_run(LocalJob(("a", "b-c")))
    assert ({"a", "b-c"} <= set(dir(state)), list(state), len(state), "a" in state) == (True, ["a", "b-c"], 2, True)
    assert (state.query_engine, state.admin_url) == (None, None)
    # The machine stays usable.
    job.kill()
    state.a.spawn_procs().stop().get()
