"""The detector of waits in the kernel, over rows that are written by hand."""

from __future__ import annotations

from typing import Any

import pytest
from support.made_up_waits import CLIENT, actor, proc

from monarch.telemetry._diagnose.diagnosis import Diagnosis, diagnosed
from monarch.telemetry._diagnose.registry import OWN
from monarch.telemetry._diagnose.snapshot import Frame, Host, Proc, Snapshot, Thread, Wait

_PIPE = {"target": "pipe:[9]", "readers": [100], "writers": [500]}


def at(rank: int, row: dict[str, Any], *programs: dict[str, Any], size: int = 1, before: dict[str, Any] | None = None) -> Proc:
    """A rank whose endpoint stands in this wait, in both looks or in another one before."""
    frames = (Frame("/srv/train.py", 10, "step"),)
    rows = [
        {"kernel_waits": {"threads": [{"thread": 70, "pid": 100 + rank, **one}], "programs": list(programs)}}
        for one in (before or row, row)
    ]
    one = proc(f"p{rank}", rank, size)._replace(threads=(Thread(7, "actor", frames, True, native=70),))
    return one._replace(resources_before=rows[0], resources=rows[1])


def program(wait: dict[str, Any] | None, state: str = "S", threads: int = 1) -> dict[str, Any]:
    return {
        "pid": 500,
        "name": "helper",
        "state": state,
        "ran": 3,
        "threads": threads,
        "wait": None if wait is None else {"thread": 500, "pid": 500, **wait},
    }


def found(*procs: Proc, doing: float = 41.0, waits: tuple[Wait, ...] = ()) -> Diagnosis:
    actors = tuple(actor(one.uid, "trainer", "step", doing, one.rank, one.size) for one in procs)
    return diagnosed(Snapshot((CLIENT, *procs), actors, (Host("a"),), waits, seconds=0.5), OWN)


def sentences(*procs: Proc, doing: float = 41.0) -> list[str]:
    return [cause.sentence for cause in found(*procs, doing=doing).causes]


_LOCK = {"call": "lock", "target": "/data/lock", "holder": 900, "holder_name": "rsync", "descriptor": 5}
_FULL = {"call": "write", "descriptor": 1, **_PIPE}
_NOT_ACCEPTED = {"call": "receive", "there": "10.0.0.1:80", "accepted": False, "peers": [[900, "nginx"]]}


@pytest.mark.parametrize(
    "row, programs, text",
    [
        (_LOCK, [], "process rsync (pid 900) holds the lock of /data/lock"),
        (_LOCK | {"holder": 0}, [], "a process of another machine or container holds the lock of /data/lock"),
        ({"call": "child", "child": 500}, [program(_FULL)], "its program helper (pid 500) cannot end: its standard output is full"),
        (
            {"call": "child", "child": -1},
            [program({"call": "read", "descriptor": 0, "target": "pipe:[9]", "readers": [500], "writers": [100]})],
            "its program helper (pid 500) cannot end: its standard input is empty",
        ),
        (
            {"call": "child", "child": 500},
            [program({"call": "futex", "private": True})],
            "its program helper (pid 500) was forked while a thread held a lock",
        ),
        (
            {"call": "read", "descriptor": 8, "target": "pipe:[9]", "readers": [100], "writers": [500]},
            [program({"call": "futex", "private": True})],
            "its program helper (pid 500) was forked while a thread held a lock",
        ),
        (
            {"call": "read", "descriptor": 8, "target": "pipe:[9]", "readers": [100], "writers": [100]},
            [program(None, "Z")],
            "no other process has the pipe that it reads; its program helper (pid 500) has ended",
        ),
        (_NOT_ACCEPTED | {"sent": 9.0}, [], "nginx (pid 900), which listens at 10.0.0.1:80, has not accepted the connection"),
        (_NOT_ACCEPTED, [], "nginx (pid 900), which listens at 10.0.0.1:80, has not accepted the connection"),
        ({"call": "connect", "there": "10.0.0.1:80", "connects": True}, [], "10.0.0.1:80 does not answer the first packet"),
        ({"call": "receive", "there": "10.0.0.1:80", "again": 6}, [], "10.0.0.1:80 does not acknowledge data, which was sent 6 times"),
        ({"call": "read", "descriptor": 0, "target": "/dev/null"}, [], "it reads its standard input, where no input comes"),
    ],
)
def test_wait_in_vain_is_a_cause(row: dict[str, Any], programs: list[dict[str, Any]], text: str) -> None:
    [sentence] = sentences(at(0, row, *programs))
    assert sentence.startswith(f"trainer (pid 100) has waited in train.py:10 in step for 41 s: {text}"), sentence
    # An endpoint that has begun just now may wait for anything.
    assert not sentences(at(0, row, *programs), doing=2.0)


@pytest.mark.parametrize(
    "row, programs",
    [
        ({"call": "child", "child": 500}, [program(None, "R")]),
        ({"call": "child", "child": 500}, [program({"call": "receive", "there": "10.0.0.1:80"})]),
        # A thread of it may release the lock, or another process.
        ({"call": "child", "child": 500}, [program({"call": "futex", "private": True}, threads=2)]),
        ({"call": "child", "child": 500}, [program({"call": "futex", "private": False})]),
        # Another program reads the pipe.
        ({"call": "child", "child": 500}, [program(_FULL | {"readers": [100, 600]})]),
        ({"call": "child", "child": 501}, [program(_FULL)]),
        # A thread of the process may write.
        ({"call": "read", "descriptor": 8, "target": "pipe:[9]", "readers": [100], "writers": [100]}, []),
        ({"call": "read", "descriptor": 8, **_PIPE}, [program({"call": "sleep"})]),
        ({"call": "receive", "there": "10.0.0.1:80", "accepted": True, "peers": [[900, "nginx"]]}, []),
        # The server accepts connections in turns.
        (_NOT_ACCEPTED | {"sent": 1.5}, []),
        ({"call": "receive", "there": "10.0.0.1:80", "again": 1}, []),
        ({"call": "sleep"}, []),
        ({"call": "read", "malformed": True, "thread": "x"}, []),
    ],
)
def test_wait_that_may_end_is_no_cause(row: dict[str, Any], programs: list[dict[str, Any]]) -> None:
    assert not sentences(at(0, row, *programs))


@pytest.mark.parametrize(
    "file, causes", [("/srv/load.py", 0), ("/usr/lib/python3.11/threading.py", 1), ("/usr/lib/python3/site-packages/x.py", 1)]
)
def test_pipe_between_threads_is_no_cause(file: str, causes: int) -> None:
    """A program has ended, and a thread of the user may write the pipe."""
    row = {"call": "read", "descriptor": 8, "target": "pipe:[9]", "readers": [100], "writers": [100]}
    one = at(0, row, program(None, "Z"))
    other = Thread(8, "writer", (Frame(file, 3, "write"),), True)
    assert len(sentences(one._replace(threads=(*one.threads, other)))) == causes


def test_another_lock_in_each_look_is_no_cause() -> None:
    assert not sentences(at(0, _LOCK, before=_LOCK | {"holder": 901}))


def test_ranks_with_one_cause_are_one_finding() -> None:
    [cause] = found(*(at(rank, _NOT_ACCEPTED, size=3) for rank in (2, 0, 1))).causes
    assert cause.sentence.startswith("trainer rank 0 of 3 (pid 100) has waited in train.py:10 in step for 41 s, and so do 2 more: nginx")
    assert any(text == "the same: trainer rank 1, trainer rank 2" for text, _ in cause.facts)


def test_lock_without_readable_holders_is_no_cause() -> None:
    assert sentences(at(0, {"call": "lock", "target": "/data/lock", "descriptor": 5})) == []


def test_rank_that_holds_a_lock_is_the_culprit() -> None:
    holder = at(0, {"call": "sleep"}, size=2)
    [cause] = found(holder, at(1, _LOCK | {"holder": 100}, size=2)).causes
    assert cause.sentence == (
        "trainer rank 0 of 2 (pid 100) holds the lock of /data/lock and stands in train.py:10 in step; trainer rank 1 waits for the lock"
    )
    assert cause.waiting == ("trainer rank 1",)
    works = holder._replace(threads=tuple(one._replace(paused=False) for one in holder.threads))
    assert not found(works, at(1, _LOCK | {"holder": 100}, size=2)).causes


def test_lock_and_call_are_a_cycle() -> None:
    call = Wait("p0", 7, True, 5, "save", "trainer", "mtrainer", 2, 1, ((1, "p1"),))
    [cause] = found(at(0, {"call": "sleep"}, size=2), at(1, _LOCK | {"holder": 100}, size=2), waits=(call,)).causes
    assert cause.detector == "deadlock"
    assert "which waits for the lock of /data/lock of trainer rank 0: a cycle of 2" in cause.sentence


def test_connection_to_another_rank_is_an_edge() -> None:
    """The rank that serves reads its standard input: what waits for it by a connection is a consequence."""
    server = at(0, {"call": "read", "descriptor": 0, "target": "/dev/null"}, size=2)
    row = {"call": "receive", "there": "10.0.0.1:80", "accepted": True, "peers": [[100, "python"]]}
    [cause] = found(server, at(1, row, size=2)).causes
    assert cause.waiting == ("trainer rank 1",)
