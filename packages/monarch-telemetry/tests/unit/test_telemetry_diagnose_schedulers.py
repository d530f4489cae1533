"""What schedulers report in a look, and its place among the causes."""

from __future__ import annotations

from typing import Any

import pytest
from support.made_up_waits import CLIENT, actor, circle, proc

from monarch.telemetry._diagnose.collect import is_asking, troubles
from monarch.telemetry._diagnose.detectors.schedulers import DETECTORS
from monarch.telemetry._diagnose.diagnosis import diagnosed
from monarch.telemetry._diagnose.inspected import Looked
from monarch.telemetry._diagnose.registry import OWN
from monarch.telemetry._diagnose.snapshot import End, Host, Snapshot, Trouble
from monarch.telemetry._diagnose.wait_graph import WaitGraph

PREEMPTED = Trouble("ended", "SLURM has preempted job 7 (PREEMPTED)", ("n1", "n2"), "slurm job ab", "squeue", "scontrol show job 7")
LOST = End("workers", 1, "host_lost", 2, detail="silent for 3 s", host="n1", is_actor=False)
KILLED = End("trainer", 0, "signal", 2, signal=15, host="n2", pid=9)


def looked(**reports: Any) -> Looked:
    """A look whose client has these reports."""
    return Looked(None, {"host": "a", "procs": [{"uid": "c", "answer": {"reports": reports}}, {"uid": "p", "answer": None}]})


def test_lost_hosts_and_killed_procs_are_consequences() -> None:
    found = diagnosed(Snapshot((CLIENT,), (), (Host("a"), Host("n1", "lost")), ends=(LOST, KILLED), troubles=(PREEMPTED,)), OWN)
    [cause] = found.causes
    assert cause.sentence == PREEMPTED.text and cause.command == "scontrol show job 7"
    assert len(cause.consequences) == 2


def test_hosts_of_another_job_are_no_consequence() -> None:
    other = LOST._replace(host="elsewhere")
    found = diagnosed(Snapshot((CLIENT,), (), (Host("a"),), ends=(other,), troubles=(PREEMPTED,)), OWN)
    assert [cause.detector for cause in found.causes] == ["scheduler", "ended"]


def test_client_on_ended_host_is_no_culprit() -> None:
    client, worker = CLIENT._replace(host="n1"), proc("p0", host="n1")
    snapshot = Snapshot((client, worker), (actor("p0", "trainer"),), (Host("n1"),), troubles=(PREEMPTED,))
    [finding] = DETECTORS[0].test(WaitGraph(snapshot))
    assert finding.nodes == (("host", "n1"), ("host", "n2"), ("proc", "p0"), ("actor", "p0", "mtrainer"))


@pytest.mark.parametrize("kind", ["leaving", "queued"])
def test_machine_that_leaves_is_less_than_a_fault(kind: str) -> None:
    snapshot = circle("left", "right")._replace(troubles=(Trouble(kind, "node n1 is draining: 'bad disk'", ("a",)),))
    assert [cause.detector for cause in diagnosed(snapshot, OWN).causes] == ["deadlock", "scheduler"]
    assert diagnosed(Snapshot((CLIENT,), troubles=snapshot.troubles), OWN).causes[0].sentence == "node n1 is draining: 'bad disk'"


def test_machine_that_has_left_explains_lost_host() -> None:
    trouble = Trouble("leaving", "node n1 is down and does not answer", ("n1",))
    hosts = (Host("a"), Host("n1", "lost"))
    [cause] = diagnosed(Snapshot((CLIENT,), (), hosts, ends=(LOST,), troubles=(trouble,)), OWN).causes
    assert cause.sentence == trouble.text and len(cause.consequences) == 1


def test_report_of_a_look_is_read() -> None:
    row = {"kind": "stuck", "text": "no image", "hosts": ["n1"], "job": "j", "source": "API server", "command": "kubectl"}
    assert troubles(looked(schedulers=[row, row])) == ((Trouble("stuck", "no image", ("n1",), "j", "API server", "kubectl"),), ())
    assert troubles(looked(schedulers=[{"kind": "unknown", "text": "no answer"}])) == ((), ("scheduler: no answer",))


def test_scheduler_without_answer_is_waited_for() -> None:
    assert is_asking(looked(schedulers=None))
    assert not is_asking(looked()) and not is_asking(looked(schedulers=[])) and not is_asking(Looked(None, None))


@pytest.mark.parametrize("rows", [5, {"kind": "stuck"}, "text", True, [3], [{"kind": 5, "hosts": 7}], [None], ["text" * 999]], ids=str)
def test_report_of_another_form_is_named(rows: Any) -> None:
    found, [missing] = troubles(looked(schedulers=rows))
    assert "another form" in missing and len(missing) <= 200
    assert not diagnosed(Snapshot((CLIENT,), troubles=found), DETECTORS).causes
