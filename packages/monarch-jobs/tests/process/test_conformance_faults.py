"""Each requirement of the suite for backends catches a scheduler that does not meet it, with a sentence that names what is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from file_job import FileJob

from monarch.job import HealReport, HostStatus, JobError, JobState, JobStatus, LocalJob, ProcessJob
from monarch.job._files import credentials
from monarch.job.testing import conformance

pytestmark = pytest.mark.timeout(120)  # the suite submits and ends several jobs


class WrongRanks(FileJob):
    def _poll(self) -> JobStatus:
        status = super()._poll()
        return status._replace(hosts=[HostStatus("hosts", 1, "", "joined", None, "")])


class WrongHostPhase(FileJob):
    def _poll(self) -> JobStatus:
        return JobStatus("running", "", [HostStatus("hosts", 0, "", "sleeping", None, "")])  # type: ignore[arg-type]


class ReadableSecret(FileJob):
    def _create(self, client_script: str | None) -> None:
        assert self.apply_id is not None
        secret = credentials.make(self.apply_id)
        super()._create(client_script)
        self.allocation.write_bytes(b"the secret is " + secret)
        self.allocation.chmod(0o644)


class SecretInArguments(FileJob):
    def _create(self, client_script: str | None) -> None:
        assert self.apply_id is not None
        secret = credentials.make(self.apply_id)
        self.sleeper_ = subprocess.Popen(["sh", "-c", "read line", secret.hex()], stdin=subprocess.PIPE)
        super()._create(client_script)

    def _kill(self) -> None:
        if "sleeper_" in vars(self):
            self.sleeper_.kill()
            self.sleeper_.communicate()
        super()._kill()


class OnlyHere(FileJob):
    known: set[str] = set()

    def _create(self, client_script: str | None) -> None:
        super()._create(client_script)
        self.known.add(str(self.apply_id))

    def _poll(self) -> JobStatus:
        return super()._poll() if self.apply_id in self.known else JobStatus("ended", "unknown here", [])


class LeavesProcesses(FileJob):
    started: list[subprocess.Popen[bytes]] = []

    def _create(self, client_script: str | None) -> None:
        super()._create(client_script)
        self.started.append(subprocess.Popen(["sleep", "1000"]))


class KilledOnce(FileJob):
    def kill(self) -> None:
        if self.apply_id is None and vars(self).get("was_"):
            raise JobError("was killed before")
        self.was_ = self.active
        super().kill()


class KilledElsewhere(FileJob):
    def _kill(self) -> None:
        self.allocation.unlink()


class KeepsRunning(FileJob):
    def _poll(self) -> JobStatus:
        return JobStatus("running", "", [])


class LosesInterrupted(FileJob):
    started: list[subprocess.Popen[bytes]] = []

    def _create(self, client_script: str | None) -> None:
        self.started.append(subprocess.Popen(["sleep", "1000"]))
        super()._create(client_script)
        self.sleeper_ = self.started[-1]

    def _kill(self) -> None:
        if "sleeper_" in vars(self):
            self.sleeper_.kill()
            self.sleeper_.wait()
        super()._kill()


@pytest.mark.parametrize(
    ("cls", "words"),
    [
        (WrongRanks, r"has each host of hosts once, in the order of the ranks, not \[1\]"),
        (WrongHostPhase, "the phase of a host is one of waiting, joined, lost, not 'sleeping'"),
        (ReadableSecret, r"no secret is in a file that others can read \(/"),
        (SecretInArguments, "no secret is in the arguments or the environment of a process"),
        (OnlyHere, "(?s)a fresh process finds the hosts of a saved job.*status\\(\\) is 'ended'"),
        (KilledOnce, r"kill\(\) of a job that was killed does nothing, and does not raise JobError: was killed before"),
        (KeepsRunning, "status\\(\\) of an allocation that was killed elsewhere is 'ended', not 'running'"),
        (KilledElsewhere, r"kill\(\) of an allocation that was killed elsewhere does nothing, and does not raise JobError"),
    ],
)
def test_fault_of_a_life_is_named(cls: type[FileJob], words: str) -> None:
    # The leftover is within the folder of the suite, like files of backends below MONARCH_HOME.
    with pytest.raises(AssertionError, match=words):
        conformance(lambda: cls(os.path.join(os.environ["MONARCH_HOME"], "alloc")), hosts=False)


@pytest.mark.parametrize(
    ("cls", "words"),
    [
        (LeavesProcesses, r"kill\(\) ends all that the job has started \(left: pid \d+, sleep 1000\)"),
        (LosesInterrupted, r"an apply\(\) that is interrupted ends what it has started \(left: pid \d+, sleep 1000"),
    ],
)
def test_remaining_processes_are_named(
    cls: type[LeavesProcesses | LosesInterrupted], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("monarch.job.testing.suite._NOTICE_S", 0.2)
    try:
        with pytest.raises(AssertionError, match=words):
            conformance(lambda: cls(str(tmp_path / "alloc")), hosts=False)
    finally:
        for process in cls.started:
            process.kill()
            process.wait()


class HealsNothing(ProcessJob):
    kind = ""

    def _heal(self, timeout: float | None) -> HealReport:
        return HealReport([], [], [])


class NoticesNothing(ProcessJob):
    kind = ""

    def _poll(self) -> JobStatus:
        status = super()._poll()
        return status._replace(phase="running", hosts=[host._replace(phase="joined") for host in status.hosts])


class OtherMeshes(ProcessJob):
    kind = ""

    def _poll(self) -> JobStatus:
        status = super()._poll()
        return status._replace(hosts=[host._replace(mesh="b") for host in status.hosts])


@pytest.mark.parametrize(
    ("cls", "words"),
    [
        (HealsNothing, r"heal\(\) reports what it did about the lost host a\[1\]"),
        (NoticesNothing, r"status\(\) reports a host as lost whose worker has ended \(a\[1\]\)"),
        (OtherMeshes, r"status\(\) has the meshes of state\(\): a, not b"),
    ],
)
def test_fault_with_hosts_is_named(cls: type[ProcessJob], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monarch.job.testing.suite._NOTICE_S", 5.0)
    with pytest.raises(AssertionError, match=words):
        conformance(lambda: cls({"a": 2}))


def test_constructor_that_takes_anything_is_named() -> None:
    with pytest.raises(AssertionError, match="arguments that cannot be right are a ValueError or TypeError of the constructor"):
        conformance(LocalJob, hosts=False, wrong=[lambda: FileJob("x", size=-1)])


class MakesBeforeItRefuses(FileJob):
    def __init__(self, folder: str, size: int = 1) -> None:
        Path("made").write_text("")
        raise ValueError("wrong")


def test_constructor_that_makes_before_it_refuses_is_named() -> None:
    with pytest.raises(AssertionError, match="a constructor that refuses its arguments makes no files"):
        conformance(LocalJob, hosts=False, wrong=[lambda: MakesBeforeItRefuses("x")])


class Wordless(LocalJob):
    def _state(self) -> JobState:
        raise OSError("no such device")


@pytest.mark.parametrize(
    ("cls", "words"),
    [
        (LocalJob, "the use of hosts that never join is an error"),
        (Wordless, "is a JoinTimeoutError or a JobEndedError, not OSError: no such device"),
    ],
)
def test_silent_hosts_are_an_error_of_the_job(cls: type[LocalJob], words: str) -> None:
    def silent() -> Any:
        return cls()

    with pytest.raises(AssertionError, match=words):
        conformance(LocalJob, hosts=False, silent=silent)


def test_process_job_conforms() -> None:
    conformance(lambda: ProcessJob({"a": 2, "b": 1}), wrong=[lambda: ProcessJob({"a": 0}), lambda: ProcessJob({})])


def test_job_of_a_script_is_not_loaded_elsewhere(folder: Path) -> None:
    """Its class cannot be imported in a fresh process: that part is left out."""
    source = Path(__file__).parents[1] / "file_job.py"
    text = source.read_text() + (
        "\nif __name__ == '__main__':\n"
        "    from monarch.job.testing import conformance\n"
        f"    conformance(lambda: FileJob({str(folder / 'alloc')!r}), hosts=False)\n"
        "    print('conforms')\n"
    )
    (folder / "script.py").write_text(text)
    done = subprocess.run([sys.executable, "script.py"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "conforms\n"), done.stderr
