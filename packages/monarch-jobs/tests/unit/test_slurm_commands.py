"""Commands of SLURM that are missing, refuse, hang or print garbage: each ends in the error that the contract names, with nothing left."""

from __future__ import annotations

from pathlib import Path

import pytest

from monarch.job import BackendMissingError, JobError, JoinTimeoutError, SlurmJob, SubmitError
from monarch.job._machine import commands
from monarch.job.slurm import launcher
from monarch.job.slurm.launcher import SlurmLauncher

SECRET = b"s" * 32


class Fakes:
    """A folder of commands that come first on PATH; `calls` has what they were called with."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "calls"
        self.log.touch()

    def add(self, name: str, body: str) -> None:
        path = self.folder / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >>{self.log}\n{body}\n')
        path.chmod(0o755)

    @property
    def calls(self) -> list[str]:
        return self.log.read_text().splitlines()


@pytest.fixture
def fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fakes:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    found = Fakes(folder)
    # The real commands must not be found, even if they are installed.
    for name in ("sbatch", "squeue", "scontrol", "sacct", "scancel", "sinfo"):
        found.add(name, "exit 127")
    found.add("squeue", "")
    found.add("scancel", "")
    return found


@pytest.fixture
def job_dir(tmp_path: Path) -> Path:
    return tmp_path / "jobs"


def made(job_dir: Path, **arguments: object) -> SlurmLauncher:
    job = SlurmJob({"hosts": 2}, job_dir=str(job_dir), **arguments)  # pyright: ignore[reportArgumentType]
    return SlurmLauncher(job._args, title="slurm job new", secret=lambda: SECRET)


def submitted(job_dir: Path, fakes: Fakes, **arguments: object) -> tuple[SlurmLauncher, dict[str, object]]:
    fakes.add("sbatch", "cat >/dev/null; echo 77")
    slurm = made(job_dir, **arguments)
    return slurm, slurm.submit(slurm.plan(), SECRET)


def nothing_left(job_dir: Path) -> bool:
    return not [path for path in job_dir.rglob("*") if path.is_file()]


def test_submission(fakes: Fakes, job_dir: Path, tmp_path: Path) -> None:
    fakes.add("sbatch", f"cat >{tmp_path}/script; env >{tmp_path}/env; echo '77;east'")
    slurm = made(job_dir)
    plan = slurm.plan()
    ids = slurm.submit(plan, SECRET)
    assert (ids["job_id"], ids["cluster"], ids["places"], ids["spares"]) == ("77", "east", {"hosts": [0, 1]}, [])
    assert (tmp_path / "script").read_text() == plan.text
    secret = job_dir / "77" / "secret"
    assert secret.read_bytes() == SECRET and secret.stat().st_mode & 0o777 == 0o600 and secret.parent.stat().st_mode & 0o777 == 0o700
    for where in (plan.text, (tmp_path / "env").read_text(), *fakes.calls):
        assert SECRET.decode() not in where and SECRET.hex() not in where


def test_refusal_of_the_scheduler_is_reported(fakes: Fakes, job_dir: Path) -> None:
    fakes.add("sbatch", "echo 'sbatch: error: invalid partition specified: fast' >&2; exit 1")
    slurm = made(job_dir, partition="fast")
    with pytest.raises(SubmitError, match="invalid partition specified: fast") as caught:
        slurm.submit(slurm.plan(), SECRET)
    assert caught.value.exit_code == 1 and (caught.value.command or "").startswith("sbatch --parsable")
    assert nothing_left(job_dir)


@pytest.mark.parametrize("printed", ["", "Submitted batch job 77", "77;", "77\\n78", "-1", "\\377\\376"])
def test_garbage_instead_of_a_job_id(fakes: Fakes, job_dir: Path, printed: str) -> None:
    """A job may be there: it is found by its comment and cancelled."""
    fakes.add(
        "sbatch",
        f"cat >/dev/null; for word; do case $word in --comment=*) echo ${{word#--comment=}} >{job_dir}.mark; esac; done\n"
        f"printf -- '{printed}'",
    )
    fakes.add("squeue", f'echo "76|other"; echo "77|$(cat {job_dir}.mark)"')
    slurm = made(job_dir)
    with pytest.raises(SubmitError, match="printed no job id") as caught:
        slurm.submit(slurm.plan(), SECRET)
    assert caught.value.exit_code == 0
    assert [call for call in fakes.calls if call.startswith("scancel")] == ["scancel 77"]
    assert nothing_left(job_dir)


def test_hanging_submission_is_ended_and_searched_for(fakes: Fakes, job_dir: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is ended, with what it started, and what it may have submitted is looked for."""
    monkeypatch.setattr(launcher, "SUBMIT_TIMEOUT_S", 0.3)
    fakes.add("sbatch", f"sleep 1000 & echo $! >{tmp_path}/child; wait")
    slurm = made(job_dir)
    with pytest.raises(SubmitError, match="did not end within 0.3 s") as caught:
        slurm.submit(slurm.plan(), SECRET)
    assert caught.value.exit_code == commands.TIMED_OUT
    assert any(call.startswith("squeue") for call in fakes.calls)
    child = int((tmp_path / "child").read_text())
    stat = Path(f"/proc/{child}/stat")
    assert not stat.exists() or stat.read_text().split()[2] == "Z"


def test_interrupted_submission_is_cancelled(fakes: Fakes, job_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fakes.add("sbatch", "cat >/dev/null; echo 77")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("monarch.job.slurm.directory.JobDirectory.write", interrupt)
    slurm = made(job_dir)
    with pytest.raises(KeyboardInterrupt):
        slurm.submit(slurm.plan(), SECRET)
    assert "scancel 77" in fakes.calls and nothing_left(job_dir)


def test_failed_cancellation_is_reported(fakes: Fakes, job_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fakes.add("sbatch", "cat >/dev/null; echo 77")
    (fakes.folder / "scancel").unlink()
    monkeypatch.setenv("PATH", f"{fakes.folder}")
    for name in ("cat", "sh"):
        (fakes.folder / name).symlink_to(f"/bin/{name}")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("monarch.job.slurm.directory.JobDirectory.write", fail)
    slurm = made(job_dir)
    with pytest.raises(SubmitError, match="No space left") as caught:
        slurm.submit(slurm.plan(), SECRET)
    assert caught.value.__context__ is not None and "SLURM job 77 may be left" in "".join(caught.value.__context__.__notes__)


def test_missing_commands(fakes: Fakes, job_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(job_dir))
    slurm = made(job_dir)
    with pytest.raises(BackendMissingError, match="no command 'sbatch'") as caught:
        slurm.submit(slurm.plan(), SECRET)
    assert "via_ssh" in str(caught.value) and isinstance(caught.value, ImportError)


def test_failed_folder_creation_is_reported(fakes: Fakes, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    slurm = made(tmp_path / "file" / "jobs")
    with pytest.raises(SubmitError, match="its folder cannot be made"):
        slurm.submit(slurm.plan(), SECRET)
    assert not any(call.startswith("sbatch") for call in fakes.calls)


@pytest.mark.parametrize("body", ["exit 1", "echo nonsense", "echo '77|NEW_STATE|None|'", "printf '\\377'"])
def test_malformed_scheduler_output_is_unknown(fakes: Fakes, job_dir: Path, body: str) -> None:
    """Neither running nor ended: it is asked again."""
    slurm, ids = submitted(job_dir, fakes)
    fakes.add("squeue", "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1" if body == "exit 1" else body)
    fakes.add("scontrol", "echo 'JobId=77 JobState=NEW_STATE Reason=None'")
    status = slurm.poll(ids)
    assert status.phase == "unknown" and [host.phase for host in status.hosts] == ["waiting", "waiting"]


def test_job_unknown_to_slurm_has_ended(fakes: Fakes, job_dir: Path) -> None:
    slurm, ids = submitted(job_dir, fakes)
    for name in ("squeue", "scontrol"):
        fakes.add(name, "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    fakes.add("sacct", "echo '77|OUT_OF_MEMORY|0:125|None|2026-11-21T10:00:00'")
    assert slurm.poll(ids).detail.startswith("OUT_OF_MEMORY, exit code 0 (signal 125), at 2026-11-21T10:00:00")
    (fakes.folder / "sacct").unlink()
    assert slurm.poll(ids).phase == "ended"
    fakes.add("scancel", "echo 'scancel: error: Kill job error on job id 77: Invalid job id specified' >&2; exit 1")
    slurm.cancel(ids)
    assert nothing_left(job_dir)


def test_failed_cancellation_is_an_error(fakes: Fakes, job_dir: Path) -> None:
    slurm, ids = submitted(job_dir, fakes)
    fakes.add("scancel", "echo 'scancel: error: Access/permission denied' >&2; exit 1")
    with pytest.raises(JobError, match="cannot be cancelled: scancel 77 ended with exit code 1\n  scancel: error: Access"):
        slurm.cancel(ids)


def test_queue_timeout_cancels_the_job(fakes: Fakes, job_dir: Path) -> None:
    slurm, ids = submitted(job_dir, fakes, job_start_timeout=5)
    fakes.add("squeue", "echo '77|PENDING|Resources|'")
    assert slurm.poll(ids).detail == "PENDING: Resources"
    ids["submitted"] = float(str(ids["submitted"])) - 6
    fakes.add("scancel", f"printf '#!/bin/sh\\necho \"77|CANCELLED|None|\"' >{fakes.folder}/squeue")
    with pytest.raises(JoinTimeoutError, match=r"did not start within 5 s \(job_start_timeout\) and was cancelled: PENDING, Resources"):
        slurm.poll(ids)
    assert "scancel 77" in fakes.calls and nothing_left(job_dir)


def test_malformed_addresses_of_workers_are_ignored(fakes: Fakes, job_dir: Path) -> None:
    slurm, ids = submitted(job_dir, fakes)
    hosts = job_dir / "77" / "hosts"
    hosts.mkdir()
    for content in ("", "{", "[]", '{"address": 3}', '{"address": ""}', "\x00" * 100_000):
        (hosts / "0.json").write_text(content)
        assert slurm.addresses(ids) == {"hosts": [None, None]}
    (hosts / "0.json").write_text('{"address": "tcp://n0:1"}')
    (hosts / "9.json").write_text('{"address": "tcp://n9:1"}')
    (hosts / "x.json").write_text('{"address": "tcp://nx:1"}')
    (hosts / "1.exit").write_text("3\n")
    assert slurm.addresses(ids) == {"hosts": ["tcp://n0:1", None]}


def test_secret_is_removed_when_all_workers_listen(fakes: Fakes, job_dir: Path) -> None:
    for requeue in (False, True):
        slurm, ids = submitted(job_dir, fakes, requeue=requeue)
        hosts = job_dir / "77" / "hosts"
        hosts.mkdir(exist_ok=True)
        for rank in range(2):
            assert (job_dir / "77" / "secret").exists()
            (hosts / f"{rank}.json").write_text('{"address": "tcp://n0:1"}')
            slurm.addresses(ids)
        assert (job_dir / "77" / "secret").exists() is requeue


def test_node_share_is_in_the_plan(fakes: Fakes, job_dir: Path) -> None:
    fakes.add("sinfo", "echo '96|960000|gpu:8'")
    job = SlurmJob({"a": 1}, job_dir=str(job_dir))
    job.share_node(2, 1, "gpu")
    lines = job.plan().text.splitlines()
    for line in ("--ntasks-per-node=2", "--partition=gpu", "--cpus-per-task=12", "--mem=240000M", "--gpus-per-node=2"):
        assert f"#SBATCH {line}" in lines
    assert "#SBATCH --exclusive" not in lines
    assert [call for call in fakes.calls if call.startswith("sinfo")] == ["sinfo -h -e -p gpu -o %c|%m|%G"]
    fakes.add("sinfo", "echo 'sinfo: error: no such partition' >&2; exit 1")
    job = SlurmJob({"a": 1})
    job.share_node(2, 1, "gpu")
    with pytest.raises(SubmitError, match="no such partition"):
        job.plan()


def test_reason_with_brackets_is_the_whole_reason(fakes: Fakes, job_dir: Path) -> None:
    slurm, ids = submitted(job_dir, fakes)
    fakes.add("scontrol", "echo 'JobId=77 JobState=FAILED Reason=Prolog (n1), held ExitCode=1:0'")
    status = slurm.poll(ids)
    assert status.phase == "ended" and slurm.ending() == ("FAILED", "Prolog (n1), held")
