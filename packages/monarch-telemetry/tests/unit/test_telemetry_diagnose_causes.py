"""Detectors and the ranking, over snapshots that are written by hand."""

from __future__ import annotations

import pytest
from support.made_up_waits import CLIENT, actor, circle, proc, wait

from monarch.telemetry._diagnose.diagnosis import Diagnosis, diagnosed
from monarch.telemetry._diagnose.registry import OWN
from monarch.telemetry._diagnose.snapshot import Actor, Check, End, Frame, Host, Snapshot, Thread, Wait


def found(snapshot: Snapshot) -> Diagnosis:
    return diagnosed(snapshot, OWN)


def test_cycle_of_two_actors_is_one_cause() -> None:
    diagnosis = found(circle("loader", "trainer"))
    [cause] = diagnosis.causes
    assert cause.detector == "deadlock"
    text = "loader (pid 100) waits in ploader.py:10 in step for trainer (give()), which waits for loader (give()): a cycle of 2 since 41 s"
    assert cause.sentence == text
    assert cause.waiting == ("the client",)


def test_cycle_of_three_actors_is_one_cause() -> None:
    [cause] = found(circle("a", "b", "c")).causes
    assert "which waits for" in cause.sentence and cause.sentence.endswith("a cycle of 3 since 41 s")


def test_actor_that_calls_itself_is_named() -> None:
    [cause] = found(circle("planner")).causes
    assert "its own endpoint give(), which can begin only when step() ends: an actor that waits for itself" in cause.sentence


def test_chain_without_cycle_has_no_cause() -> None:
    snapshot = circle("a", "b", "c")
    assert not found(snapshot._replace(waits=tuple(one for one in snapshot.waits if one.name != "a" or one.proc == "c"))).causes


def test_wait_that_does_not_block_makes_no_cycle() -> None:
    snapshot = circle("a", "b")
    assert not found(snapshot._replace(waits=(snapshot.waits[0]._replace(blocks=False), *snapshot.waits[1:]))).causes


def test_endpoint_beside_others_makes_no_cycle() -> None:
    snapshot = circle("a", "b")
    assert not found(snapshot._replace(actors=tuple(one._replace(concurrent=("give",)) for one in snapshot.actors))).causes


def test_stopped_process_explains_those_that_wait() -> None:
    stopped = proc("p1", 1, 2)._replace(kernel="T", silent=9.0, answered=False, threads=())
    snapshot = Snapshot((CLIENT, proc("p0", 0, 2), stopped), (actor("p0", "trainer", rank=0, size=2),), (Host("a"),))
    client = Wait("c", 1, True, 1, "step", "trainer", "mtrainer", 2, 2, ((0, "p0"), (1, "p1")))
    other = Wait("p0", 7, True, 2, "sync", "trainer", "mtrainer", 2, 1, ((1, "p1"),))
    diagnosis = found(snapshot._replace(waits=(client, other)))
    [cause] = diagnosis.causes
    assert cause.sentence == "trainer rank 1 of 2 (pid 101) is stopped by a signal since 9.0 s"
    assert cause.waiting == ("trainer rank 0", "the client") and cause.command == "kill -CONT 101"
    assert (diagnosis.healthy_procs, diagnosis.procs) == (0, 3)


def test_cycle_behind_a_stopped_process_is_no_cycle() -> None:
    """What waits for a stopped process is its consequence."""
    snapshot = circle("a", "b")
    procs = tuple(one._replace(kernel="T", silent=9.0) if one.uid == "pb" else one for one in snapshot.procs)
    waits = tuple(one for one in snapshot.waits if one.proc != "pb")
    [cause] = found(snapshot._replace(procs=procs, waits=waits)).causes
    assert cause.detector == "unresponsive" and cause.waiting == ("a", "the client")


def test_gil_names_the_line_of_the_busy_actor() -> None:
    ill = proc("p0")._replace(
        silent=8.0, reason="something keeps the GIL, or the machine is overloaded", stacks_without_gil=True, kernel="R"
    )
    [cause] = found(Snapshot((CLIENT, ill), (actor("p0", "trainer", "crunch"),), (Host("a"),))).causes
    assert cause.sentence == "trainer (pid 100) keeps the GIL in p0.py:10 in step since 8.0 s: no other thread of it runs"


@pytest.mark.parametrize(
    "kernel, used, waited, starved", [("S", 0.01, 0.9, True), ("R", 0.0, 0.0, True), ("S", 0.0, 0.0, False), ("R", 0.9, 0.0, False)]
)
def test_runnable_process_without_a_processor_is_starved(kernel: str, used: float, waited: float, starved: bool) -> None:
    ill = proc("p0")._replace(silent=8.0, stacks_without_gil=True, kernel=kernel)
    checks = tuple(Check(kind, "a", ill.name, value, 1.0, ("p0",)) for kind, value in (("processor", used), ("run_queue", waited)))
    [cause] = found(Snapshot((CLIENT, ill), (actor("p0", "trainer", "crunch"),), (Host("a"),), checks=checks)).causes
    assert ("gets no processor time" in cause.sentence, "keeps the GIL" in cause.sentence) == (starved, not starved)


@pytest.mark.parametrize("seconds, count", [(41.0, 1), (1.0, 0)])
def test_held_lock_is_a_cause_after_seconds(seconds: float, count: int) -> None:
    held = Frame("/srv/p0.py", 68, "Uploader._upload")
    holder = Thread(8, "upload", (Frame("/usr/lib/python3.11/threading.py", 327, "wait"), held), True)
    ill = proc("p0")
    ill = ill._replace(threads=(*ill.threads, holder))
    lock = Wait("p0", 7, lock="7f", holder=8, held_at=held)
    causes = found(Snapshot((CLIENT, ill), (actor("p0", "trainer", seconds=seconds),), (Host("a"),), (lock,))).causes
    assert len(causes) == count
    assert not causes or "thread upload of workers (pid 100) holds a lock in p0.py:68 in _upload" in causes[0].sentence


@pytest.mark.parametrize(
    "holder, text",
    [
        (8, "thread upload of workers rank 0 (pid 100) holds a lock in p0.py:68 in _upload for which trainer rank 0 waits since 41 s"),
        (None, "for a lock since 41 s; no thread that stands in a with statement holds it"),
    ],
)
def test_locks_of_equal_ranks_are_one_cause(holder: int | None, text: str) -> None:
    held = Frame("/srv/p0.py", 68, "Uploader._upload")
    step = Frame("/srv/train.py", 11, "step")
    threads = (Thread(7, "actor", (step,), True), Thread(8, "upload", (held,), True))
    procs = [proc(f"p{rank}", rank, 8)._replace(threads=threads) for rank in range(8)]
    actors = tuple(actor(one.uid, "trainer", rank=one.rank, size=8) for one in procs)
    # Another thread of the last rank has the lock of its process.
    procs[7] = procs[7]._replace(threads=(threads[0], threads[1]._replace(frames=(step,))))
    locks = tuple(Wait(one.uid, 7, lock="7f", holder=holder, held_at=held if holder else None) for one in procs[:7])
    other = Wait("p7", 7, lock="7f", holder=8, held_at=step)
    causes = found(Snapshot((CLIENT, *procs), actors, (Host("a"),), (*locks, other))).causes
    assert len(causes) == 2
    [cause] = [one for one in causes if one.sentence.endswith(f"{text}; 6 more wait alike")]
    assert any(fact == "the same: trainer rank 1, trainer rank 2, trainer rank 3 and 3 more" for fact, _ in cause.facts)


def test_holder_that_goes_on_is_no_cause() -> None:
    holder = Thread(8, "upload", (Frame("/srv/p0.py", 68, "_upload"),), False)
    ill = proc("p0")
    lock = Wait("p0", 7, lock="7f", holder=8)
    assert not found(Snapshot((ill._replace(threads=(*ill.threads, holder)),), (actor("p0", "trainer"),), (Host("a"),), (lock,))).causes


def test_dead_process_is_one_cause_for_its_meshes() -> None:
    ends = (
        End("workers", 2, "signal", 4, "m1", is_actor=False, signal=9, host="a", pid=77),
        End("trainer", 2, "signal", 4, "m2", signal=9, host="a", pid=77),
        End("trainer", 2, "stopped", 4, "m2", host="a", pid=78),
    )
    [cause] = found(Snapshot((CLIENT,), hosts=(Host("a"),), ends=ends)).causes
    assert cause.sentence == "trainer rank 2 of 4 (host a, pid 77) was killed by signal 9 (SIGKILL)"


def test_exception_has_its_line() -> None:
    traceback = 'Traceback (most recent call last):\n  File "/srv/train.py", line 31, in step\n    raise ValueError("bad")\nValueError: bad'
    end = End("trainer", 1, "raised", 4, detail=traceback, host="a", pid=101)
    [cause] = found(Snapshot((proc("p1", 1, 4),), hosts=(Host("a"),), ends=(end,))).causes
    assert cause.sentence == "trainer rank 1 of 4 (host a, pid 101) raised ValueError: bad in train.py:31 in step"


def test_ranks_that_fail_once_are_no_loop() -> None:
    ends = tuple(End("trainer", rank, "signal", 4, "m1", signal=9, host="a", pid=70 + rank) for rank in range(4))
    assert {cause.detector for cause in found(Snapshot(ends=ends)).causes} == {"ended"}


def test_meshes_that_fail_again_are_a_loop() -> None:
    ends = tuple(End("server", None, "exit_code", 1, f"m{n}", code=1, host="a", pid=70 + n) for n in range(4))
    [cause] = found(Snapshot(ends=ends)).causes
    assert cause.detector == "crash_loop" and "server fails again and again: 4 failures, the last exited with code 1" in cause.sentence


@pytest.mark.parametrize(
    "queued, before, taken, doing_for, count",
    [
        (5000, 4900, 5, 0.05, 1),  # ten messages a second, and thousands wait
        (5000, 4900, 0, 9.0, 1),  # behind an endpoint that does not end
        (5000, 4900, 4000, 0.0, 0),  # done in a second: a burst
        (5000, 5100, 5, 0.05, 0),  # it shrinks
        (5000, 4900, 0, 0.5, 0),  # behind an endpoint that has just begun
        (100, 10, 0, 9.0, 0),  # a short queue
    ],
)
def test_long_queue_that_grows_is_a_cause(queued: int, before: int, taken: int, doing_for: float, count: int) -> None:
    sink = Actor("p0", "msink", "sink", doing="push", doing_for=doing_for, queued=queued, taken=taken, queued_before=before, taken_before=0)
    assert len(found(Snapshot((proc("p0"),), (sink,), (Host("a"),), seconds=0.5)).causes) == count


@pytest.mark.parametrize("paused, seconds, count", [(True, 12.0, 1), (False, 12.0, 0), (True, 3.0, 0)])
def test_import_that_stands_still_is_a_cause(paused: bool, seconds: float, count: int) -> None:
    names = (("/srv/slow.py", "<module>"), ("<frozen importlib._bootstrap>", "_find_and_load"), ("/srv/train.py", "load"))
    thread = Thread(7, "actor", tuple(Frame(file, 3, name) for file, name in names), paused)
    causes = found(Snapshot((proc("p0")._replace(threads=(thread,)),), (actor("p0", "trainer", "load", seconds),), (Host("a"),))).causes
    assert len(causes) == count
    assert not causes or "has been importing slow for 12 s and stands in slow.py:3 in <module>" in causes[0].sentence


@pytest.mark.parametrize("free, count", [(1 << 20, 1), (1 << 30, 0)])
def test_full_file_system_is_a_cause(free: int, count: int) -> None:
    check = Check("file_system", "a", "/dev/shm", (1 << 34) - free, 1 << 34)
    causes = found(Snapshot(checks=(check,))).causes
    assert len(causes) == count
    assert not causes or causes[0].sentence == "/dev/shm of host a is full: 1.0 of 16,384 MiB are free"


def test_silent_host_explains_its_processes() -> None:
    snapshot = circle("a", "b")
    procs = (*snapshot.procs[:2], snapshot.procs[2]._replace(host="b"))
    hosts = (Host("a"), Host("b", "joined", "no answer in 2 s"))
    diagnosis = found(snapshot._replace(procs=procs, hosts=hosts, waits=tuple(one for one in snapshot.waits if one.proc != "pb")))
    assert diagnosis.causes[0].sentence == "host b does not answer: no answer in 2 s"
    assert diagnosis.causes[0].waiting == ("a", "b", "the client") and len(diagnosis.causes) == 1
    assert diagnosis.answered_hosts == 1


def test_cause_is_before_a_finding_of_less_weight() -> None:
    snapshot = circle("a", "b")
    sink = Actor("c", "msink", "sink", doing="push", queued=5000, taken=1, queued_before=10, taken_before=0)
    causes = found(snapshot._replace(actors=(*snapshot.actors, sink), seconds=0.5)).causes
    assert [one.detector for one in causes] == ["deadlock", "growing_queue"]


def test_queue_behind_a_cycle_is_a_consequence() -> None:
    snapshot = circle("a", "b")
    sink = Actor("ps", "msink", "sink", doing="push", doing_for=9.0, queued=5000, queued_before=10, taken_before=0, thread=7)
    waits = (*snapshot.waits, wait("ps", "a", "pa"))
    [cause] = found(
        snapshot._replace(procs=(*snapshot.procs, proc("ps")), actors=(*snapshot.actors, sink), waits=waits, seconds=0.5)
    ).causes
    assert cause.detector == "deadlock" and len(cause.consequences) == 1 and "sink" in cause.consequences[0]
