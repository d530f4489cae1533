"""What SLURM's answers mean for a job, as `monarch diagnose` shows it."""

from __future__ import annotations

import pytest

from monarch.job._job.launcher import Host
from monarch.job.slurm.output import JobRecord, NodeState, node_states
from monarch.job.slurm.troubles import troubles

PLACES = {"a": [0, 1], "b": [2]}
NODES = ["n0", "n1", "n2"]
IDLE = {name: NodeState("allocated") for name in NODES}


def texts(record: JobRecord, states: dict[str, NodeState] | None = None) -> list[tuple[str, str]]:
    return [(one.kind, one.text) for one in troubles("7", record, PLACES, NODES, IDLE if states is None else states, NODES)]


def test_states_of_nodes_have_reasons() -> None:
    found = node_states("n0|allocated|none\nn1|draining|bad disk | slot 3\nn2|down*|Not responding\n")
    assert found["n0"] == NodeState("allocated") and found["n0"].is_alive
    assert found["n1"] == NodeState("draining", "bad disk | slot 3") and found["n1"].is_alive
    assert not found["n2"].is_alive


def test_running_job_has_no_trouble() -> None:
    assert texts(JobRecord("RUNNING", nodes="n[0-2]")) == []


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (JobRecord("PREEMPTED", "None"), "SLURM has preempted job 7 (PREEMPTED: None)"),
        (JobRecord("CANCELLED", exit_code="0:15"), "job 7 of SLURM was cancelled (CANCELLED, exit code 0:15)"),
        (JobRecord("TIMEOUT", "TimeLimit"), "SLURM has ended job 7 at its time limit (TIMEOUT: TimeLimit)"),
        (JobRecord("FAILED", exit_code="3:0"), "job 7 of SLURM has ended (FAILED, exit code 3:0)"),
        (JobRecord("COMPLETING"), "SLURM is ending job 7 (COMPLETING)"),
        (JobRecord("PENDING", "BeginTime", restarts=1), "SLURM has put job 7 back into the queue (PENDING: BeginTime)"),
    ],
)
def test_end_of_job_is_that_of_hosts(record: JobRecord, text: str) -> None:
    assert texts(record) == [("ended", text)]
    assert troubles("7", record, PLACES, NODES, IDLE, NODES)[0].hosts == ()


def test_job_in_the_queue_is_queued() -> None:
    assert texts(JobRecord("PENDING", "Resources", restarts=0)) == [("queued", "job 7 of SLURM waits in the queue (PENDING: Resources)")]


def test_failed_node_is_the_reason_of_the_end() -> None:
    states = IDLE | {"n1": NodeState("down", "bad disk")}
    assert texts(JobRecord("NODE_FAIL"), states) == [
        ("ended", "SLURM has ended job 7, since it lost a node (NODE_FAIL); node n1 is down: 'bad disk'")
    ]


def test_draining_node_is_leaving_with_its_hosts() -> None:
    states = IDLE | {"n1": NodeState("draining", "bad disk"), "spare": NodeState("drained", "x")}
    [one] = troubles("7", JobRecord("RUNNING"), PLACES, NODES, states, NODES)
    assert (one.kind, one.text, one.hosts) == ("leaving", "node n1 is draining: 'bad disk'", (Host("a", 1),))
    assert one.command == "scontrol show node n1"


def test_node_without_answer_is_leaving() -> None:
    [one] = troubles("7", JobRecord("RUNNING"), PLACES, NODES, IDLE | {"n2": NodeState("down*", "Not responding")}, NODES)
    assert (one.kind, one.hosts) == ("leaving", (Host("b", 0),))
    assert one.text == "node n2 is down and does not answer: 'Not responding'"


def test_node_that_job_has_lost_is_named() -> None:
    states = IDLE | {"n1": NodeState("down", "bad disk")}
    for now, words in ((states, "; node n1 is down: 'bad disk'"), (IDLE, "")):
        [one] = troubles("7", JobRecord("RUNNING"), PLACES, NODES, now, ["n0", "n2"])
        assert (one.kind, one.hosts, one.text) == ("ended", (Host("a", 1),), f"SLURM has taken node n1 from job 7{words}")
