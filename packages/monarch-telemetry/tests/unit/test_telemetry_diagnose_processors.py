"""Processor times of processes of any host, as their agents have read them in two looks."""

from __future__ import annotations

from typing import Any

from support.made_up_waits import CLIENT, actor, proc

from monarch.telemetry._diagnose.diagnosis import Diagnosis, diagnosed
from monarch.telemetry._diagnose.inspected import Looked
from monarch.telemetry._diagnose.registry import OWN
from monarch.telemetry._diagnose.resources import processor_checks
from monarch.telemetry._diagnose.snapshot import Host, Snapshot

GROUP = "/sys/fs/cgroup/cpu/job/cpu.stat"
RANKS = [proc(f"p{rank}", rank, 4, "far") for rank in range(4)]


def looked(at: float, *times: dict[str, Any] | None) -> Looked:
    """A look of the client's agent, and of that of another host, at this age of it: milliseconds of each rank."""
    rows = [
        {"uid": one.uid, "answer": None, "times": None if of is None else {"at": at, "group": None, "held_back": 0, **of}}
        for one, of in zip(RANKS, times, strict=True)
    ]
    far = {"host": "far", "procs": [{"uid": "agent", "answer": None}, *rows]}
    return Looked(None, {"host": "a", "procs": [{"uid": "c", "answer": None}], "hosts": [{"answer": far}, {"answer": None}]})


def ran(used: int, waited: int, **more: Any) -> dict[str, Any]:
    return {"used": used * 1_000_000, "waited": waited * 1_000_000, **more}


def found(before: Looked, now: Looked) -> Diagnosis:
    checks = tuple(processor_checks((CLIENT, *RANKS), before, now))
    actors = tuple(actor(one.uid, "trainer", "step", 41.0, one.rank, 4) for one in RANKS)
    return diagnosed(Snapshot((CLIENT, *RANKS), actors, (Host("a"), Host("far")), checks=checks, seconds=0.5), OWN)


def test_rank_of_another_host_without_a_processor() -> None:
    zero = looked(7.0, *[ran(0, 0)] * 4)
    [cause] = found(zero, looked(8.0, ran(900, 10), ran(5, 950), ran(910, 10), ran(890, 9))).causes
    assert cause.detector == "processor"
    assert "trainer rank 1 of 4 (host far, pid 101) gets 0.5% of a processor where other ranks on host far get 90%" in cause.sentence
    assert not found(zero, looked(8.0, *[ran(300, 650)] * 4)).causes, "all of them have less"


def test_cgroup_of_another_host_is_held_back() -> None:
    before = [ran(0, 0, group=GROUP), ran(0, 0), ran(0, 0, group=GROUP), ran(0, 0)]
    now = [ran(40, 0, group=GROUP, held_back=800_000_000), ran(900, 0), ran(40, 0, group=GROUP, held_back=800_000_000), ran(900, 0)]
    [cause] = found(looked(7.0, *before), looked(8.0, *now)).causes
    assert cause.sentence == "the cgroup of 2 procs of host far limits processor time: it is held back 80% of the time"


def test_process_without_two_looks_has_no_times() -> None:
    before, now = looked(7.0, None, *[ran(0, 0)] * 3), looked(7.0, ran(1, 1), *[ran(0, 0)] * 3)
    assert list(processor_checks(RANKS, before, now)) == []
    assert list(processor_checks(RANKS, Looked(None, None), now)) == []
