"""Real programs with faults, and healthy ones: what `monarch diagnose` finds in each."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from eventually import eventually

from bench.faults.catalog import FAULTS, OF_TABLES, by_name
from bench.faults.measure import look as look_by_command
from bench.faults.measure import running
from bench.faults.program import Fault
from monarch.telemetry import Diagnosis
from monarch.telemetry._cli import diagnose
from monarch.telemetry._diagnose.collect import collected, job_of
from monarch.telemetry._diagnose.diagnosis import diagnosed

# A fault such as an import that hangs is one only after ten seconds.
pytestmark = pytest.mark.timeout(60)


def look(pid: int) -> Diagnosis:
    return diagnosed(collected(lambda: job_of(pid)))


@pytest.mark.parametrize("fault", FAULTS, ids=lambda one: one.name)
def test_cause_of_a_fault_is_first(fault: Fault) -> None:
    if not fault.is_possible():
        pytest.skip(f"needs {fault.module or fault.needs}")
    last: list[Diagnosis] = []

    def found() -> bool:
        last[:] = [look(job.pid)]
        # No other cause is ever invented meanwhile.
        assert all(re.search(fault.cause, cause.sentence) for cause in last[0].causes), last[0]
        return bool(last[0].causes)

    with running(fault) as job:
        eventually(f"the cause of {fault.name} is found", found, seconds=45)


@pytest.mark.parametrize("fault", OF_TABLES, ids=lambda one: one.name)
def test_cause_in_tables_of_a_job_is_first(fault: Fault) -> None:
    with running(fault) as job:
        eventually(f"the cause of {fault.name} is found", lambda: look_by_command(fault, job).place == 1, seconds=45)


@pytest.mark.parametrize("name", ["steps_2x10ms", "ping_pong", "bursts", "retries"])
def test_healthy_job_has_no_cause(name: str) -> None:
    with running(by_name(name)) as job:
        for _ in range(2):
            found = look(job.pid)
            assert not found.causes and not found.left_out, found


def test_command_prints_causes_and_json() -> None:
    with running(by_name("own_actor")) as job:
        eventually("the cause is found", lambda: bool(look(job.pid).causes))
        done = CliRunner().invoke(diagnose, [str(job.pid)], standalone_mode=False)
        assert done.return_value == 1 and done.stdout.startswith("1  planner (pid "), done.stdout
        done = CliRunner().invoke(diagnose, [str(job.pid), "--json"], standalone_mode=False)
        assert json.loads(done.stdout)["causes"][0]["detector"] == "deadlock"


def test_job_that_does_not_exist_is_an_error() -> None:
    done = CliRunner().invoke(diagnose, ["1"], standalone_mode=False)
    assert done.return_value == 3 and "process 1 is not the client of a job" in done.stderr


def test_host_of_a_killed_client_is_diagnosed(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path / 'worker'}"
    client = (
        "import os; from monarch.actor import attach_to_workers;"
        f"attach_to_workers(workers=[{address!r}]).spawn_procs({{'gpus': 2}}, name='workers').initialized.get(); os.kill(os.getpid(), 9)"
    )
    command = [str(Path(sys.executable).parent / "monarch"), "worker", "--listen", address]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as worker:
        try:
            eventually("the worker listens", lambda: (tmp_path / "worker").exists())
            assert subprocess.run([sys.executable, "-c", client], check=False).returncode == -9

            def text() -> str:
                done = CliRunner().invoke(diagnose, [str(worker.pid)], standalone_mode=False)
                assert done.return_value == 0, done.stdout
                return done.stdout

            found = eventually("the procs of the client are gone", text, lambda text: "no process could be looked at" in text)
            assert f"no answer: client: the agent of host {os.uname().nodename} (pid {worker.pid}) has none" in found
        finally:
            worker.kill()
