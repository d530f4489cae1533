"""Process groups in snapshots: ranks that disagree about a collective, ranks that are late, and what waits for them."""

from __future__ import annotations

from typing import Any

import pytest
from support.made_up_waits import actor, proc

from monarch.telemetry._diagnose.diagnosis import Diagnosis, diagnosed
from monarch.telemetry._diagnose.group_rank import Call, Counted, GroupRank, counted_ranks
from monarch.telemetry._diagnose.registry import OWN
from monarch.telemetry._diagnose.snapshot import Host, Snapshot

SUM = Call(7, "all_reduce", (1024,), "float32")
GROUP = ("workers", "0", "ab")


def rank(number: int, *looks: tuple[int, Call | None], size: int = 4) -> GroupRank:
    return GroupRank(f"p{number}", GROUP, number, size, tuple(Counted(begun, call) for begun, call in looks))


def job(*ranks: GroupRank, idle: tuple[int, ...] = (), seconds: float = 1.5, age: float = 60.0) -> Snapshot:
    procs = tuple(proc(one.proc, one.rank, one.size)._replace(age=age) for one in ranks)
    actors = tuple(
        actor(one.proc, "learner", None if one.rank in idle else "train", rank=one.rank, size=one.size)._replace(
            taken=3, taken_before=3, queued_before=0
        )
        for one in ranks
    )
    return Snapshot(procs, actors, (Host("a"),), groups=ranks, group_seconds=seconds)


def found(snapshot: Snapshot) -> Diagnosis:
    return diagnosed(snapshot, OWN)


def waiting(number: int, begun: int = 6, call: Call = SUM) -> GroupRank:
    return rank(number, (begun, call), (begun, call))


def test_rank_without_the_collective_is_named() -> None:
    [cause] = found(job(waiting(0), rank(1, (5, None), (5, None)), waiting(2), waiting(3), idle=(1,))).causes
    assert cause.sentence == (
        "learner rank 1 of 4 (pid 101) has not called all_reduce in p0.py:10 in step, for which 3 ranks wait: it has begun 5 collectives "
        "of process group 0 of 4 ranks, they 6, and it runs no endpoint"
    )
    assert cause.waiting == ("learner rank 0", "learner rank 2", "learner rank 3")


def test_rank_that_is_ahead_is_named() -> None:
    [cause] = found(job(waiting(0), *(rank(n, (5, None), (5, None)) for n in (1, 2, 3)), idle=(1, 2, 3))).causes
    assert cause.sentence.startswith("learner rank 0 of 4 (pid 100) waits in all_reduce in p0.py:10 in step, which 3 ranks have not called")


@pytest.mark.parametrize(
    "call, text",
    [
        (
            Call(7, "broadcast", (1024,), "float32", 0),
            "calls broadcast in p2.py:12 in step where 3 ranks call all_reduce: collective 6 of ",
        ),
        (SUM._replace(shape=(8,)), "with a float32 tensor of 8 where 3 ranks call it with a float32 tensor of 1024: collective 6 of "),
        (SUM._replace(dtype="float16"), "with a float16 tensor of 1024 where 3 ranks call it with a float32 tensor of 1024: "),
    ],
)
def test_rank_with_another_call_is_named(call: Call, text: str) -> None:
    [cause] = found(job(waiting(0), waiting(1), waiting(2, call=call), waiting(3))).causes
    assert cause.sentence.startswith("learner rank 2 of 4 (pid 102) calls ") and text in cause.sentence
    assert cause.waiting == ("learner rank 0", "learner rank 1", "learner rank 3")


def test_another_root_is_named() -> None:
    share = Call(7, "broadcast", (8,), "float32", 0)
    [cause] = found(job(waiting(0, call=share), waiting(1, call=share), waiting(2, call=share._replace(root=2)))).causes
    assert "calls broadcast in p2.py:12 in step with root 2 where 2 ranks call it with root 0" in cause.sentence


def test_reshaped_tensor_of_one_size_is_no_cause() -> None:
    assert not found(job(waiting(0), waiting(1, call=SUM._replace(shape=(32, 32))))).causes


def test_ranks_may_gather_different_sizes() -> None:
    scattered = Call(7, "all_to_all_single", (8,), "float32")
    assert not found(job(waiting(0, call=scattered), waiting(1, call=scattered._replace(shape=(16,))))).causes


def test_calls_between_two_ranks_are_left_out() -> None:
    assert not found(job(waiting(0, call=Call(7, "send", (8,))), waiting(1, call=Call(7, "recv", (8,))))).causes


@pytest.mark.parametrize("age, count", [(60.0, 0), (0.5, 1)])
def test_standing_rank_is_late_by_the_usual_pace(age: float, count: int) -> None:
    causes = found(job(waiting(0), rank(1, (5, None), (5, None)), waiting(2), age=age)).causes
    assert len(causes) == count and all("it stands in p1.py:11 in step" in one.sentence for one in causes)


def test_working_rank_is_no_cause() -> None:
    snapshot = job(waiting(0), rank(1, (5, None), (5, None)), waiting(2), age=0.5)
    moving = tuple(one._replace(threads=tuple(thread._replace(paused=False) for thread in one.threads)) for one in snapshot.procs)
    assert not found(snapshot._replace(procs=moving)).causes


def test_late_rank_that_is_stopped_explains_the_others() -> None:
    snapshot = job(waiting(0), rank(1, (5, None), (5, None)), waiting(2))
    procs = tuple(one._replace(kernel="T", silent=9.0) if one.uid == "p1" else one for one in snapshot.procs)
    [cause] = found(snapshot._replace(procs=procs)).causes
    assert cause.detector == "unresponsive" and cause.waiting == ("learner rank 0", "learner rank 2")


NUMBERS = (100, 104, 109)


def waits_in_all(number: int) -> GroupRank:
    return rank(number, *((begun, SUM) for begun in NUMBERS))


def test_rank_that_is_always_last_is_slow() -> None:
    slow = rank(1, *((begun - 1, None) for begun in NUMBERS))
    [cause] = found(job(waits_in_all(0), slow, waits_in_all(2), waits_in_all(3))).causes
    assert cause.sentence.startswith("learner rank 1 of 4 (pid 101) is slower than the other ranks: 3 ranks waited for it in all looks")


def test_ranks_that_are_last_in_turns_are_healthy() -> None:
    first = rank(0, (100, SUM), (103, None), (109, SUM))
    second = rank(1, (99, None), (104, SUM), (109, SUM))
    assert not found(job(first, second, waits_in_all(2), waits_in_all(3))).causes


def test_few_looks_show_no_slow_rank() -> None:
    slow = rank(1, (99, None), (103, None))
    others = [rank(number, (100, SUM), (104, SUM)) for number in (0, 2, 3)]
    assert not found(job(others[0], slow, *others[1:])).causes


def test_two_groups_in_another_order_are_a_cycle() -> None:
    """Rank 0 waits in one group for rank 1, which waits in the other group for rank 0."""
    one, other = GROUP, ("workers", "1", "ab")
    ranks = (
        GroupRank("p0", one, 0, 2, (Counted(2, SUM),) * 2),
        GroupRank("p1", one, 1, 2, (Counted(1),) * 2),
        GroupRank("p0", other, 0, 2, (Counted(1),) * 2),
        GroupRank("p1", other, 1, 2, (Counted(2, SUM),) * 2),
    )
    snapshot = job(waiting(0), waiting(1))._replace(groups=ranks)
    causes = found(snapshot).causes
    assert causes[0].detector == "deadlock" and "a cycle of 2" in causes[0].sentence, causes


@pytest.mark.parametrize("value", [None, 3, [{}], [{"begun": 1, "calls": 4}], [{"begun": "x", "calls": [], "name": 1}], [None]])
def test_malformed_groups_are_left_out(value: Any) -> None:
    assert not list(counted_ranks({"groups": value}))
