"""`serve` and `run_spmd` on hosts of this machine: reserved once, run many times."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command import monarch
from eventually import eventually
from fresh_script import run as run_fresh
from torchx.specs import AppDef, Role

from monarch.job import JobEndedError, JobError, JobTrait, ProcessJob
from monarch.job.spmd import SPMDJob, job_load, serve
from monarch.spmd import LaunchArgumentError, RestartPolicy, SPMDFailure

STATE = ".monarch/job_state.json"
# Adds a line to a file for each rank that runs.
NOTES = """
import os
with open("notes", "a") as file:
    file.write(f"{os.environ['RANK']}/{os.environ['WORLD_SIZE']}\\n")
"""
COMMAND = ["torchrun", "--nproc-per-node=2", "train.py"]


def notes(folder: Path) -> list[str]:
    found = sorted((folder / "notes").read_text().split())
    (folder / "notes").unlink()
    return found


def test_runs_are_repeated_on_the_same_hosts(folder: Path, ended: Callable[[Any], SPMDJob]) -> None:
    (folder / "train.py").write_text(NOTES)
    job = ended(serve([*COMMAND[:2], "--standalone", "train.py"]))
    assert job.active and job.status().phase == "running"
    where = job._where()
    for _ in range(2):
        job.run_spmd()
        assert notes(folder) == ["0/2", "1/2"]
    # The next run has the edited files.
    (folder / "train.py").write_text(NOTES.replace("{os.environ['RANK']}", "new{os.environ['RANK']}"))
    job.run_spmd()
    assert notes(folder) == ["new0/2", "new1/2"] and job._where() == where


def test_saved_job_runs_in_another_process(folder: Path, ended: Callable[[Any], SPMDJob]) -> None:
    (folder / "train.py").write_text(NOTES)
    job = ended(serve(COMMAND))
    code = 'from monarch.job import job_load\njob_load(".monarch/job_state.pkl").run_spmd()\n'
    run_fresh(code)
    assert notes(folder) == ["0/2", "1/2"]
    loaded = job_load(STATE)
    assert isinstance(loaded, SPMDJob) and loaded.handle == job.handle and loaded.plan() == job.plan()
    loaded.run_spmd()
    assert notes(folder) == ["0/2", "1/2"]


def test_several_hosts(folder: Path, ended: Callable[[Any], SPMDJob]) -> None:
    (folder / "train.py").write_text(NOTES)
    ended(serve(["torchrun", "--nnodes=2", "--nproc-per-node=2", "train.py"])).run_spmd()
    assert notes(folder) == ["0/4", "1/4", "2/4", "3/4"]


def test_cached_job_is_killed_first(folder: Path, ended: Callable[[Any], SPMDJob], capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "train.py").write_text(NOTES)
    first = serve(COMMAND)
    pids = [int(word) for word in first._where().replace(",", "").split() if word.isdigit()]
    second = ended(serve(COMMAND))
    assert f"of {STATE} is killed: another one takes its place" in capfd.readouterr().err
    eventually("the end of the first workers", lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))
    second.run_spmd()
    assert notes(folder) == ["0/2", "1/2"]


def test_killed_job_has_no_hosts(folder: Path) -> None:
    (folder / "train.py").write_text(NOTES)
    job = serve(COMMAND)
    loaded = job_load(STATE)
    job.kill()
    assert not (folder / STATE).exists()
    for one in (job, loaded):
        with pytest.raises(JobEndedError, match="serve"):
            one.run_spmd()


def test_failure_keeps_the_hosts(folder: Path, ended: Callable[[Any], SPMDJob]) -> None:
    (folder / "train.py").write_text("raise ValueError('bad')")
    job = ended(serve(COMMAND))
    with pytest.raises(SPMDFailure, match="raised ValueError: bad"):
        job.run_spmd()
    (folder / "train.py").write_text(NOTES)
    job.run_spmd()
    assert notes(folder) == ["0/2", "1/2"]


def test_lost_host_is_healed_during_a_run(folder: Path, ended: Callable[[Any], SPMDJob]) -> None:
    (folder / "train.py").write_text(
        """
import os, signal
count = os.environ["TORCHELASTIC_RESTART_COUNT"]
open(f"{count}.{os.environ['RANK']}", "w").close()
if count == "0":
    if os.environ["RANK"] == "1":
        # The worker of its host, three levels up: guard, proc, and what starts procs are below it.
        os.kill(int(os.environ["VICTIM"]), signal.SIGKILL)
    signal.pause()
"""
    )
    job = ended(serve(["torchrun", "--nnodes=2", "train.py"]))
    workers = [int(word) for word in job._where().replace(",", "").split() if word.isdigit()]
    job.original_roles[0]["env"] = {"VICTIM": str(workers[1])}
    job.run_spmd(policy=RestartPolicy(max_restarts=1))
    assert {path.name for path in folder.glob("?.?")} == {"0.0", "0.1", "1.0", "1.1"}


@pytest.mark.timeout(60)
def test_state_of_a_lost_host_has_a_copy(folder: Path, ended: Callable[[Any], SPMDJob]) -> None:
    (folder / "train.py").write_text(
        """
import os, signal
from monarch.spmd import Snapshots
rank, snapshots = int(os.environ["RANK"]), Snapshots()
found = snapshots.restore()
if found is None:
    for step in range(3):
        snapshots.save(step, {"rank": rank, "data": bytes([rank]) * 70_000_000}).get()
    open(f"saved.{rank}", "w").close()
    if rank == 1:
        while not all(os.path.exists(f"saved.{other}") for other in range(3)):  # polls: ranks have no other way to meet here
            pass
        os.kill(int(os.environ["VICTIM"]), signal.SIGKILL)
    signal.pause()
step, state = found
with open("notes", "a") as file:
    file.write(f"{rank}:{step}:{state['rank']}:{len(set(state['data']))}:{state['data'][0]}\\n")
"""
    )
    job = ended(serve(["torchrun", "--nnodes=3", "--max-restarts=1", "train.py"]))
    workers = [int(word) for word in job._where().replace(",", "").split() if word.isdigit()]
    job.original_roles[0]["env"] = {"VICTIM": str(workers[1])}
    job.run_spmd()
    assert notes(folder) == ["0:2:0:1:0", "1:2:1:1:1", "2:2:2:1:2"]


def test_application_of_torchx(folder: Path, ended: Callable[[Any], SPMDJob]) -> None:
    (folder / "train.py").write_text(NOTES)
    role = Role("trainers", image=str(folder), entrypoint="torchrun", args=["--nnodes=2", "--nproc-per-node=1", "train.py"], num_replicas=2)
    job = ended(serve(AppDef("app", [role])))
    job.run_spmd()
    assert notes(folder) == ["0/2", "1/2"]
    loaded: Any = job_load(STATE)
    loaded.run_spmd()
    assert notes(folder) == ["0/2", "1/2"]


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (("torchrun train.py",), TypeError, "expected a list of words"),
        ((COMMAND, "mast"), ValueError, "scheduler='mast': a command list goes to local_cwd, local, process, kubernetes, skypilot, slurm"),
        ((COMMAND, "local_cwd", {"queue": "a"}), ValueError, r"scheduler_cfg\['queue'\]: no such option, there is: env"),
        ((["torchrun", "--nproc-per-node=0", "a.py"],), LaunchArgumentError, "--nproc-per-node=0"),
        ((["torchrun"],), LaunchArgumentError, "a launch names a program"),
        ((COMMAND, "kubernetes"), ValueError, "kubernetes needs a namespace"),
        ((AppDef("app", [Role("a", image=""), Role("b", image="")]),), ValueError, r"has 2 roles \(a, b\): a launch has one"),
    ],
)
def test_bad_arguments_end_nothing(
    folder: Path, ended: Callable[[Any], SPMDJob], arguments: Any, error: type[Exception], text: str
) -> None:
    job = ended(serve(["python", "train.py"]))
    with pytest.raises(error, match=text):
        serve(*arguments)
    assert job.status().phase == "running"


def test_job_of_a_handle_alone_has_no_hosts() -> None:
    job = SPMDJob("slurm://1", "slurm")
    with pytest.raises(JobError, match="has no hosts"):
        job.state(cached_path=None)
    with pytest.raises(JobError, match="has no command"):
        job.run_spmd()


def test_command_runs_on_the_current_job(folder: Path, ended: Callable[[Any], JobTrait]) -> None:
    (folder / "train.py").write_text(NOTES)
    code, out, err = monarch("run", "--job", "train.py")
    assert code == 1 and "there is no current job" in err
    job = ended(ProcessJob({"hosts": 2}))
    job.state()
    code, out, err = monarch("run", "--nproc-per-node=2", "train.py")
    assert (code, out) == (0, "") and err == f"monarch: on 2 hosts of the {job._title}\n"
    assert notes(folder) == ["0/4", "1/4", "2/4", "3/4"]
    assert monarch("run", "--local", "train.py") == (0, "", "")
    assert notes(folder) == ["0/1"]
    job.kill()
    assert monarch("run", "train.py") == (0, "", "")
