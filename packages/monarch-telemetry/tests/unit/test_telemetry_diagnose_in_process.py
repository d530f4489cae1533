"""Detectors of waits within a process, over rows that are written by hand: event loops, breakpoints, ended threads, joined threads."""

from __future__ import annotations

from typing import Any

import pytest
from support.made_up_waits import CLIENT, actor, proc, wait

from monarch.telemetry._diagnose.diagnosis import Diagnosis, diagnosed
from monarch.telemetry._diagnose.registry import OWN
from monarch.telemetry._diagnose.snapshot import Actor, Frame, Host, Proc, Snapshot, Thread, Wait
from monarch.telemetry._diagnose.supplies import Program, Supply

_PYTHON = "/usr/lib/python3.11"
_RUN = Frame(f"{_PYTHON}/asyncio/events.py", 80, "Handle._run")
_STEP = Frame("/srv/train.py", 10, "step")
_WAIT = Frame(f"{_PYTHON}/threading.py", 327, "Condition.wait")
_WORKER = Thread(8, "prefetch", (_WAIT, Frame("/srv/load.py", 5, "fetch")), True)
_RAISED = {"kind": "thread", "name": "prefetch", "error": "ValueError: bad", "frames": [["/srv/load.py", 3, "read"]]}


def stands(*frames: Frame, call: str = "sleep", raised: list[Any] | None = None, more: tuple[Thread, ...] = ()) -> Proc:
    """A process whose actor stands in these calls."""
    found = {"kernel_waits": {"threads": [{"thread": 70, "pid": 100, "call": call}], "programs": []}, "raised": raised or []}
    threads = (Thread(7, "actor", frames, True, native=70), *more)
    return proc("p")._replace(threads=threads, resources=found, resources_before=found)


def found(one: Proc, of: Actor, *waits: Wait, supplies: tuple[Supply, ...] = ()) -> Diagnosis:
    return diagnosed(Snapshot((CLIENT, one), (of,), (Host("a"),), waits, supplies=supplies, seconds=0.5), OWN)


def test_synchronous_call_in_a_loop_is_a_cause() -> None:
    blocked = actor("p", "server")._replace(queued=3)
    [cause] = found(stands(_STEP, _RUN), blocked).causes
    assert cause.sentence == (
        "server (pid 100) has blocked its event loop in train.py:10 in step for 41 s: "
        "a call that is no coroutine waits there for time to pass, and nothing else of the actor runs"
    )


@pytest.mark.parametrize(
    "one, queued",
    [
        # No message waits; a library may work in other threads; a synchronous endpoint keeps its messages waiting by design.
        (stands(_STEP, _RUN), 0),
        (stands(_STEP, _RUN, call="futex"), 3),
        (stands(_STEP), 3),
    ],
)
def test_long_call_is_no_blocked_loop(one: Proc, queued: int) -> None:
    assert not found(one, actor("p", "server")._replace(queued=queued)).causes


def test_loop_that_waits_is_not_blocked() -> None:
    assert not found(stands(_STEP, _RUN), actor("p", "server")._replace(queued=3), wait("p", "store", "q")).causes


def test_endpoint_at_a_breakpoint_is_a_cause() -> None:
    session = [Frame("/x/_core/debug/session.py", 1, "DebugSession.ask"), Frame(f"{_PYTHON}/pdb.py", 3, "Pdb.interaction")]
    [cause] = found(stands(*session, _STEP), actor("p", "server")).causes
    assert cause.sentence == "server (pid 100) has stood at a breakpoint in train.py:10 in step for 41 s: it waits for a command"
    assert cause.command == "monarch debug"


def test_traced_function_is_at_no_breakpoint() -> None:
    assert not found(stands(_STEP, Frame(f"{_PYTHON}/bdb.py", 3, "Bdb.runcall")), actor("p", "server")).causes


def test_thread_that_has_raised_explains_a_wait() -> None:
    [cause] = found(stands(_WAIT, _STEP, raised=[_RAISED]), actor("p", "server")).causes
    assert cause.sentence == (
        "server (pid 100) has waited in train.py:10 in step for 41 s; thread prefetch of the process has ended with "
        "ValueError: bad in load.py:3 in read"
    )


@pytest.mark.parametrize("row", [{"kind": "thread"}, {**_RAISED, "frames": [1]}, 5])
def test_malformed_row_of_an_exception_is_left_out(row: Any) -> None:
    diagnosis = found(stands(_WAIT, _STEP, raised=[row]), actor("p", "server"))
    assert not diagnosis.causes and not diagnosis.left_out


def test_thread_that_has_raised_explains_no_work() -> None:
    assert not found(stands(_STEP, raised=[_RAISED]), actor("p", "server")).causes
    assert not found(stands(_WAIT, _STEP, raised=[_RAISED]), actor("p", "server", seconds=2.0)).causes
    assert not found(stands(_WAIT, _STEP, raised=[_RAISED]), actor("p", "server"), wait("p", "store", "q")).causes


@pytest.mark.parametrize("supply", [Supply("p", 7, "queue", (8,)), Supply("p", 7, "pipe", (), (Program(9, "python"),))])
def test_living_supplier_is_no_ended_thread(supply: Supply) -> None:
    assert not found(stands(_WAIT, _STEP, raised=[_RAISED], more=(_WORKER,)), actor("p", "server"), supplies=(supply,)).causes


def test_supplier_may_wait_for_an_ended_thread() -> None:
    supplies = Supply("p", 7, "queue", (8,)), Supply("p", 8, "queue")
    one = stands(_WAIT, _STEP, raised=[_RAISED], more=(_WORKER,))
    [cause] = found(one, actor("p", "server"), supplies=supplies).causes
    assert "thread prefetch of the process has ended with ValueError" in cause.sentence


@pytest.mark.parametrize("age, causes", [(40.0, 1), (95.0, 1), (3600.0, 0)])
def test_exception_of_long_ago_explains_no_wait(age: float, causes: int) -> None:
    assert len(found(stands(_WAIT, _STEP, raised=[{**_RAISED, "age": age}]), actor("p", "server")).causes) == causes


def test_ranks_that_wait_alike_are_one_cause() -> None:
    """Each text of the exception has a number of its own; the last rank waits for another thread."""
    rows = [{**_RAISED, "error": f"ValueError: record {rank}"} for rank in range(8)]
    rows[7]["error"] = "KeyError: 3"
    procs = [stands(_WAIT, _STEP, raised=[row])._replace(uid=f"p{rank}", rank=rank, pid=100 + rank) for rank, row in enumerate(rows)]
    actors = tuple(actor(one.uid, "server", rank=one.rank, size=8) for one in procs)
    causes = diagnosed(Snapshot((CLIENT, *procs), actors, (Host("a"),), seconds=0.5), OWN).causes
    assert [cause.sentence for cause in causes] == [
        "server rank 0 of 8 (pid 100) has waited in train.py:10 in step for 41 s, and so do 6 more; thread prefetch of each process has "
        "ended with ValueError: record 0 in load.py:3 in read",
        "server rank 7 of 8 (pid 107) has waited in train.py:10 in step for 41 s; thread prefetch of the process has ended with "
        "KeyError: 3 in load.py:3 in read",
    ]
    assert any(text == "the same: server rank 1, server rank 2, server rank 3 and 3 more" for text, _ in causes[0].facts)


def test_long_name_of_a_thread_hides_no_cause() -> None:
    named = _WORKER._replace(name="n" * 100_000)
    joins = Wait("p", 7, holder=8, thing="the end of a thread")
    [cause] = found(stands(_WAIT, _STEP, raised=[_RAISED], more=(named,)), actor("p", "server"), joins).causes
    assert cause.sentence.startswith(f"thread {'n' * 80}… of workers (pid 100) has waited in load.py:5 in fetch for 41 s; thread prefetch")


def test_joined_thread_is_the_end_of_the_chain() -> None:
    """The actor joins a thread, which waits for what another one should have done."""
    joins = Wait("p", 7, holder=8, thing="the end of thread prefetch")
    [cause] = found(stands(_WAIT, _STEP, raised=[{**_RAISED, "name": "reader"}], more=(_WORKER,)), actor("p", "server"), joins).causes
    assert cause.sentence.startswith("thread prefetch of workers (pid 100) has waited in load.py:5 in fetch for 41 s; thread reader")
    assert cause.waiting == ("server",)


def test_pool_that_waits_for_itself_is_a_cycle() -> None:
    result = Wait("p", 7, holder=8, thing="the result of a task")
    own = Wait("p", 8, holder=8, thing="a task of a pool that cannot begin")
    [cause] = found(stands(_WAIT, _STEP, more=(_WORKER,)), actor("p", "server"), result, own).causes
    assert cause.sentence == "thread prefetch of workers (pid 100) waits in load.py:5 in fetch for a task of a pool that cannot begin"
    assert cause.waiting == ("server",)
