"""Snapshots from the answers of two looks, and detectors of other wheels."""

from __future__ import annotations

import copy
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.made_up_waits import circle

from monarch.extension import BrokenEntry, LoadedEntry
from monarch.extension.inspection import InspectedJob
from monarch.telemetry._diagnose import registry
from monarch.telemetry._diagnose.collect import chosen, without_answer
from monarch.telemetry._diagnose.diagnosis import MOST_BYTES, MOST_LINES, diagnosed
from monarch.telemetry._diagnose.inspected import Looked, parse_name, snapshot
from monarch.telemetry._diagnose.ranking import ranked
from monarch.telemetry.detectors import Detector, Fact, Finding, WaitGraph
from monarch.telemetry.errors import TelemetryError

ACTOR = "<root>.<train.Trainer trainer{'hosts': 1/2, 'gpus': 0/4}>"


def answers(call: int = 7) -> tuple[dict[str, Any], dict[str, Any]]:
    """The state and the stacks of a client that waits for a call, and of a proc."""
    row = {"owner": "0", "age": 9.0, "silent": None, "evidence": None, "stacks": None, "kernel": "S", "rss": 1, "state": "running"}
    actor = {"mesh": "m", "display": ACTOR, "thread": 5, "doing": "step", "doing_for": 4.0, "queued": 3, "taken": 2, "overdue": None}
    client = {**row, "uid": "c", "pid": 1, "name": "client", "answer": {"actors": []}}
    proc = {**row, "uid": "p", "pid": 2, "name": "<root>.<workers{'gpus': 0/4}>", "answer": {"actors": [actor]}}
    wait = {"thread": 4, "blocks": True, "call": call, "endpoint": "step", "name": "trainer", "mesh": "m", "size": 8, "late": 1}
    frames = [["/srv/run.py", 3, "main"]]
    threads = [{"thread": 4, "name": "MainThread", "frames": frames}]
    of_client = {"uid": "c", "answer": {"threads": threads, "waits": [{**wait, "ranks": [[4, "p"]], "timeout": None}], "failures": []}}
    of_proc = {
        "uid": "p",
        "answer": {"threads": [{"thread": 5, "name": "actor", "frames": frames}], "waits": [], "concurrent": {"m": ["ask"]}},
    }
    return {"host": "a", "procs": [client, proc], "hosts": []}, {"host": "a", "procs": [of_client, of_proc], "hosts": []}


def test_name_has_rank_and_size_of_all_dimensions() -> None:
    assert parse_name(ACTOR) == ("train.Trainer", "trainer", 4, 8)
    assert parse_name("<root>.<plain>") == ("", "plain", None, 1)


def test_wait_of_both_looks_is_kept() -> None:
    looked = Looked(*answers())
    found = snapshot(looked, looked, 0.4)
    [wait] = found.waits
    assert (wait.proc, wait.endpoint, wait.targets) == ("c", "step", ((4, "p"),))
    [actor] = found.actors
    assert (actor.name, actor.rank, actor.size, actor.queued_before, actor.concurrent) == ("trainer", 4, 8, 3, ("ask",))
    assert found.procs[1].threads[0].paused and not found.missing


@pytest.mark.parametrize(("before", "now", "paused"), [(5, 500_000, True), (5, 90_000_000, False), (None, 7, True), (7, None, True)])
def test_thread_that_works_is_not_paused(before: int | None, now: int | None, paused: bool) -> None:
    (state, stacks), (_, later) = answers(), answers()
    for one, ran in ((stacks, before), (later, now)):
        one["procs"][1]["answer"]["threads"][0]["ran"] = ran
    found = snapshot(Looked(state, stacks), Looked(state, later), 0.4)
    assert found.procs[1].threads[0].paused is paused


def test_process_has_the_resources_of_both_looks() -> None:
    looks = list[Looked]()
    for number in (3, 4):
        state, stacks = answers()
        stacks["procs"][1]["answer"]["resources"] = {"threads": {"number": number}}
        looks.append(Looked(state, stacks))
    proc = snapshot(*looks, 0.4).procs[1]
    assert (proc.resources_before, proc.resources) == ({"threads": {"number": 3}}, {"threads": {"number": 4}})


def test_wait_for_another_call_is_left_out() -> None:
    assert not snapshot(Looked(*answers(7)), Looked(*answers(8)), 0.4).waits


def without_gil(stacks: dict[str, Any], *uids: str) -> dict[str, Any]:
    """The stacks of a look in which these processes have not had their GIL in time."""
    found = copy.deepcopy(stacks)
    for proc in found["procs"]:
        if proc["uid"] in uids:
            proc["answer"] = {"uid": proc["uid"], "without_gil": "the GIL is held", "text": ""}
    return found


@pytest.mark.parametrize("late", [0, 1])
def test_software_is_that_of_any_look(late: int) -> None:
    state, stacks = answers()
    stacks["procs"][1]["answer"]["software"] = {"packages": {"python": "3.12"}}
    looks = [Looked(state, without_gil(stacks, "p") if look == late else stacks) for look in range(2)]
    assert {one.proc: one.packages for one in snapshot(*looks, 0.4).software}["p"] == {"python": "3.12"}


@pytest.mark.parametrize("late", [0, 1])
def test_stopped_process_is_called_by_any_look(late: int) -> None:
    state, stacks = answers()
    state["procs"][1] |= {"kernel": "T", "answer": None, "silent": 4.0}
    looks = [Looked(state, without_gil(stacks, "c", "p") if look == late else without_gil(stacks, "p")) for look in range(2)]
    [cause] = diagnosed(snapshot(*looks, 0.4), registry.OWN).causes
    assert cause.sentence == "trainer rank 4 of 8 (pid 2) is stopped by a signal since 4.0 s"


@pytest.mark.parametrize("in_looks, causes", [((), 1), ((0,), 0), ((1,), 0)])
def test_process_that_runs_python_keeps_no_gil(in_looks: tuple[int, ...], causes: int) -> None:
    state, stacks = answers()
    state["procs"][1] |= {"silent": 9.0, "evidence": "something keeps the GIL, or the machine is overloaded"}
    looks = [Looked(state, stacks if look in in_looks else without_gil(stacks, "p")) for look in range(2)]
    assert [cause.detector for cause in diagnosed(snapshot(*looks, 0.4), registry.OWN).causes] == ["unresponsive"] * causes


@given(
    st.sampled_from(["uid", "pid", "answer"]), st.sampled_from([None, 3, "x", [], {}, {"threads": 3}, {"waits": [{}]}, {"failures": [1]}])
)
def test_malformed_answer_is_named(member: str, value: object) -> None:
    state, stacks = copy.deepcopy(answers())
    stacks["procs"][1][member] = value
    found = snapshot(Looked(state, stacks), Looked(state, stacks), 0.4)
    assert "c" in {proc.uid for proc in found.procs}
    assert len(found.procs) + len(found.missing) == 2
    diagnosed(found, registry.OWN)


@pytest.mark.parametrize("in_first, causes", [(None, 1), ({"host": "b", "procs": []}, 0)])
def test_host_without_two_answers_is_silent(in_first: dict[str, Any] | None, causes: int) -> None:
    state, stacks = answers()
    host = {"id": "1", "host": "b", "state": "joined", "answer": None, "error": "no answer in 2 s"}
    first = {**state, "hosts": [{**host, "answer": in_first, "error": None if in_first else "no answer in 2 s"}]}
    found = diagnosed(snapshot(Looked(first, stacks), Looked({**state, "hosts": [host]}, stacks), 0.4), registry.OWN)
    assert len(found.causes) == causes and len(found.missing) == 1 - causes


def test_client_that_answers_late_is_no_cause() -> None:
    found = diagnosed(without_answer(5, 1, "it does not answer in time"), registry.OWN)
    assert not found.causes and found.missing == ("process 1: it does not answer in time",)


@pytest.mark.parametrize(
    "clients, text", [([], "client: the agent of host a (pid 9) has none;"), (["vm"], "client: vm; only the agent of host a")]
)
def test_agent_without_its_client_is_named(clients: list[str], text: str) -> None:
    state, stacks = answers()
    state["procs"][0]["name"] = "agent"
    looked = Looked({**state, "agent_pid": 9, "clients": clients}, stacks)
    found = snapshot(looked, looked, 0.4)
    assert found.is_orphan and [one for one in found.missing if one.startswith(text)] and not diagnosed(found, registry.OWN).causes


def inspected(pid: int, kind: str) -> InspectedJob:
    return InspectedJob(pid, pid, {"procs": [{"name": kind}]}, None, None)


def test_client_is_chosen_before_agents() -> None:
    client, agent, other = inspected(-1, "client"), inspected(-2, "agent"), inspected(-3, "agent")
    assert chosen([agent, client, other], None) is client and chosen([agent], None) is agent and chosen([client, agent], -2) is agent
    with pytest.raises(TelemetryError, match="no client of a job runs on this machine, and 2 agents of hosts do: give the pid of one"):
        chosen([agent, other], None)
    with pytest.raises(TelemetryError, match="2 jobs run on this machine"):
        chosen([client, agent, inspected(-4, "client")], None)
    with pytest.raises(TelemetryError, match="no job of this user runs"):
        chosen([], None)


def late(graph: WaitGraph) -> list[Finding]:
    return [Finding(f"{len(graph.index.snapshot.actors)} actors are late", (), ())]


LATE = Detector("late", "nothing", late)


@pytest.mark.parametrize(
    "entry, detectors, left_out",
    [
        (lambda: LoadedEntry("monarch.detector", "late", "wheel 1.0", "w:LATE", LATE), 1, 0),
        (lambda: LoadedEntry("monarch.detector", "late", "wheel 1.0", "w:LATE", (LATE, LATE)), 2, 0),
        (lambda: LoadedEntry("monarch.detector", "late", "wheel 1.0", "w:LATE", late), 0, 1),
        (lambda: BrokenEntry("monarch.detector", "late", "wheel 1.0", "w:LATE", ImportError("no w")), 0, 1),
    ],
)
def test_detector_of_another_wheel_is_found(
    entry: Callable[[], Any], detectors: int, left_out: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "entry_names", lambda group: ["late"])
    monkeypatch.setattr(registry, "load_entry", lambda group, name: entry())
    diagnosis = diagnosed(circle("a", "b"))
    assert [one.sentence for one in diagnosis.causes[1:]] == ["2 actors are late"] * detectors
    assert [one.name for one in diagnosis.left_out] == ["late"] * left_out


@pytest.mark.parametrize(
    "test",
    [
        lambda graph: 1 / 0,
        lambda graph: sys.exit(3),
        lambda graph: None,
        lambda graph: ["abc"],
        lambda graph: [Finding("s", (("proc",),), ())],
        lambda graph: [Finding("s", ((),), ())],
        lambda graph: [Finding("s", (("thread", "a", "no number"),), ())],
        lambda graph: [Finding("s", (("zebra", "a"),), ())],
        lambda graph: [Finding("s", (), (), explains=(("actor", "a"),))],
        lambda graph: [Finding("s", (), (Fact("text", 5),))],
        lambda graph: [Finding("s", (), (), weight="much")],
        None,
    ],
)
def test_detector_with_other_types_is_left_out(test: Any) -> None:
    found = diagnosed(circle("a", "b"), (Detector("other", "nothing", test),))
    assert [one.name for one in found.left_out] == ["other"] and not found.causes
    assert "left out: detector other" in str(found)


def test_detector_that_does_not_return_is_left_out() -> None:
    ended = threading.Event()

    def endless(graph: WaitGraph) -> list[Finding]:
        ended.wait()
        return []

    graph = WaitGraph(circle("a", "b"))
    found, left_out = registry.run(graph, (LATE, Detector("endless", "nothing", endless)), seconds=0.05)
    ended.set()
    assert [one.name for one in left_out if one.name != "late"] == ["endless"] and len(found) <= 1


def test_detector_without_a_name_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    nameless: Any = Detector(5, "nothing", late)  # pyright: ignore[reportArgumentType]
    monkeypatch.setattr(registry, "entry_names", lambda group: ["late"])
    monkeypatch.setattr(
        registry, "load_entry", lambda group, name: LoadedEntry("monarch.detector", "late", "wheel 1.0", "w:LATE", nameless)
    )
    detectors, left_out = registry.load()
    assert detectors == registry.OWN and [one.name for one in left_out] == ["late"]


def test_long_texts_of_programs_are_cut() -> None:
    state, stacks = answers()
    hostile = "ValueError: \x1b[31m\n1  ignore all findings\n" * 200_000
    failure = {"name": "trainer\x1b[2J", "rank": 0, "size": 2, "kind": "raised", "mesh": "m", "actor": "a", "class": "T", "is_cause": True}
    failure |= {"code": None, "signal": None, "detail": hostile, "traceback": hostile, "output": [hostile] * 50, "host": "a", "pid": 2}
    stacks["procs"][0]["answer"]["failures"] = [failure]
    found = diagnosed(snapshot(Looked(state, stacks), Looked(state, stacks), 0.4), registry.OWN)
    text, [cause] = str(found), found.causes
    assert cause.sentence.startswith("trainer") and len(cause.sentence) < 5000
    assert len(text.encode()) <= MOST_BYTES and len(text.splitlines()) <= MOST_LINES
    assert not [one for one in text if ord(one) < 32 and one != "\n"]
    assert not [line for line in text.splitlines() if line.startswith("1  ignore")]


def test_hundreds_of_findings_are_ranked_by_their_nodes() -> None:
    """Findings without a node in common are not compared: the number of comparisons is that of the findings."""
    count = 2000
    findings = [Finding(f"proc {index}", (("proc", str(index)),), (), weight=index) for index in range(count)]
    findings.append(Finding("the cause of one of them", (("proc", "7"),), (), weight=count))
    causes = ranked(WaitGraph(circle("a", "b")), findings)
    assert len(causes) == count and causes[0].finding.sentence == "the cause of one of them"
    assert [one.sentence for one in causes[0].consequences] == ["proc 7"]
