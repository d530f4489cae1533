"""The diagnosis of a job by its own process and by the tool of agents, with telemetry that runs."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from eventually import eventually

import monarch.actor
import monarch.telemetry as telemetry
from monarch.actor import Actor, SupervisionError, endpoint, this_host
from monarch.telemetry._agents.tools import Tools
from monarch.telemetry._diagnose.collect import of_engine
from monarch.telemetry._diagnose.diagnosis import diagnosed


class Doomed(Actor):
    @endpoint
    def die(self) -> None:
        print("out of luck", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

    @endpoint
    def live(self) -> int:
        return 1


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> Iterator[telemetry.Telemetry]:
    monkeypatch.setattr(monarch.actor, "unhandled_fault_hook", lambda failure: None)
    found = telemetry.start()
    yield found
    found.stop().get()


def fail(name: str) -> monarch.actor.ProcMesh:
    procs = this_host().spawn_procs({"gpus": 2}, name=name)
    doomed = procs.spawn("doomed", Doomed)
    doomed.live.call().get()
    with pytest.raises(SupervisionError):
        doomed.slice(gpus=1).die.call_one().get()
    return procs


def test_failure_is_a_cause_until_it_is_handled(running: telemetry.Telemetry) -> None:
    procs = fail("first")
    found = eventually("the failure has its last output", telemetry.diagnose, lambda found: "out of luck" in str(found))
    [cause] = found.causes
    assert "doomed rank 1 of 2" in cause.sentence and "was killed by signal 9 (SIGKILL)" in cause.sentence
    text = Tools(lambda: running.asking).call("diagnose", {})
    assert text.startswith("1  doomed rank 1 of 2") and "\ncanned diagnoses, by name:\n" in text
    procs.stop().get()
    assert not telemetry.diagnose().causes


def test_engine_of_the_job_finds_its_processes(running: telemetry.Telemetry) -> None:
    with this_host().spawn_procs({"gpus": 2}, name="seen") as procs:
        procs.initialized.get()
        snapshot = of_engine(running.asking)
        assert {(proc.mesh, proc.rank) for proc in snapshot.procs} >= {("seen", 0), ("seen", 1), (None, None)}
        assert not diagnosed(snapshot).causes


def test_replaced_meshes_that_fail_are_a_loop(running: telemetry.Telemetry) -> None:
    for _ in range(3):
        fail("again").stop().get()
    found = eventually("three failures have rows", telemetry.diagnose, lambda found: bool(found.causes))
    assert found.causes[0].detector == "crash_loop" and "again fails again and again" in found.causes[0].sentence
