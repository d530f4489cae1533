"""Detectors of memory, disks, links and clocks, over resources that are written by hand."""

from __future__ import annotations

from typing import Any

import pytest
from support.made_up_waits import CLIENT, actor, proc

from monarch.telemetry._diagnose.diagnosis import Diagnosis, diagnosed
from monarch.telemetry._diagnose.registry import OWN
from monarch.telemetry._diagnose.resources import resource_checks
from monarch.telemetry._diagnose.snapshot import Called, Check, End, Frame, Host, Proc, Snapshot, Thread

_MIB = 1 << 20


def with_resources(one: Proc, before: dict[str, Any] | None = None, **resources: Any) -> Proc:
    return one._replace(resources=resources, resources_before=resources if before is None else before)


def found(*procs: Proc, doing: float = 41.0, hosts: tuple[Host, ...] = (Host("a"),)) -> Diagnosis:
    actors = tuple(actor(one.uid, "trainer", "step", doing, one.rank, one.size) for one in procs if one.mesh is not None)
    return diagnosed(Snapshot(procs, actors, hosts, checks=resource_checks(procs), seconds=0.5), OWN)


def group(used: int, failures: int) -> dict[str, Any]:
    return {"memory": {"path": "/g", "used": used * _MIB, "limit": 100 * _MIB, "failures": failures, "cache": 0}}


@pytest.mark.parametrize("used, failures, causes", [(97, 0, 1), (90, 5, 1), (90, 0, 0), (50, 5, 0)])
def test_nearly_used_memory_is_a_cause(used: int, failures: int, causes: int) -> None:
    memory = {"anonymous": 80 * _MIB, "shared": 0}
    big = with_resources(proc("p1", 1, 2), {"cgroups": group(used, 0)}, cgroups=group(used, failures), memory=memory)
    small = with_resources(proc("p0", 0, 2), cgroups=group(used, 0), memory={"anonymous": _MIB, "shared": 0})
    diagnosis = found(CLIENT, small, big)
    assert len(diagnosis.causes) == causes
    if causes:
        text = f"trainer rank 1 of 2 (pid 101) has nearly used up the memory of its cgroup: {used} of 100 MiB on host a, 2 procs share it"
        assert diagnosis.causes[0].sentence == text


def test_cache_of_files_is_no_used_memory() -> None:
    full = group(99, 0)
    full["memory"]["cache"] = 60 * _MIB
    assert not found(with_resources(proc("p0"), cgroups=full)).causes


def of_threads(rank: int, number: int, before: int | None = None) -> Proc:
    threads = tuple(Thread(n, "", (Frame("/srv/pool.py", 9, "work"),)) for n in range(number))
    one = proc(f"p{rank}", rank, 3)._replace(threads=threads)
    return with_resources(one, {"threads": {"number": number if before is None else before}}, threads={"number": number})


def test_threads_of_one_rank_are_a_leak() -> None:
    [cause] = found(of_threads(0, 9), of_threads(1, 300), of_threads(2, 8)).causes
    assert cause.sentence == "trainer rank 1 of 3 (pid 101) has 300 threads: 300 of them stand in pool.py:9 in work, other ranks have 8"


def test_many_threads_of_all_ranks_are_no_leak() -> None:
    assert not found(*(of_threads(rank, 300) for rank in range(3))).causes


@pytest.mark.parametrize("before, causes", [(1200, 1), (1300, 0)])
def test_only_growing_threads_without_peers_are_a_leak(before: int, causes: int) -> None:
    one = of_threads(0, 1300, before)._replace(mesh="alone", size=1)
    assert len(found(one).causes) == causes


def test_descriptors_of_one_rank_are_a_leak() -> None:
    def of(rank: int, number: int) -> Proc:
        return with_resources(proc(f"p{rank}", rank, 3), descriptors={"number": number, "limit": 4096, "targets": [["/data/x", number]]})

    [cause] = found(of(0, 40), of(1, 900), of(2, 40)).causes
    assert cause.sentence == "trainer rank 1 of 3 (pid 101) has 900 open descriptors of at most 4,096, other ranks have 40"
    assert cause.facts[0][0] == "of the last ones 900 of /data/x"


@pytest.mark.parametrize("before, now, causes", [([[7, "python"]], [[7, "python"]], 1), ([], [[7, "python"]], 0), ([[7, "python"]], [], 0)])
def test_stopped_program_of_a_rank_is_a_cause(before: list[Any], now: list[Any], causes: int) -> None:
    one = with_resources(proc("p0"), {"programs": {"number": 1, "stopped": before}}, programs={"number": 1, "stopped": now})
    diagnosis = found(one)
    sentences = [cause.sentence for cause in diagnosis.causes]
    assert sentences == ["the program python (pid 7) of trainer (pid 100) is stopped by a signal"] * causes
    assert not found(one._replace(mesh=None, name="client")).causes


@pytest.mark.parametrize(
    "used, waited, others, doing, answered, causes",
    [
        (0.01, 0.9, 0.5, 9.0, True, 1),
        (0.01, 0.9, 0.5, 9.0, False, 1),
        (0.1, 0.9, 0.5, 9.0, True, 0),  # a share that differs by chance
        (0.01, 0.1, 0.5, 9.0, True, 0),  # it has nothing to do
        (0.0, 0.9, 0.04, 9.0, True, 0),  # all ranks lack a processor
        (0.01, 0.9, 0.5, 2.0, True, 0),
    ],
)
def test_rank_whose_processor_is_taken_is_named(
    used: float, waited: float, others: float, doing: float, answered: bool, causes: int
) -> None:
    procs = [proc(f"p{rank}", rank, 4)._replace(answered=answered or rank != 2) for rank in range(4)]
    values = [(used, waited) if rank == 2 else (others, 0.4) for rank in range(4)]
    checks = tuple(
        Check(kind, "a", one.name, value, 1.0, (one.uid,))
        for one, pair in zip(procs, values, strict=True)
        for kind, value in zip(("processor", "run_queue"), pair, strict=True)
    )
    actors = tuple(actor(one.uid, "trainer", "step", doing, one.rank, 4) for one in procs if one.answered)
    called = {"p2": Called("trainer", 2, 4)}
    diagnosis = diagnosed(Snapshot(tuple(procs), actors, (Host("a"),), called=called, checks=checks, seconds=0.5), OWN)
    assert [cause.detector for cause in diagnosis.causes] == ["processor"] * causes
    if causes:
        text = "trainer rank 2 of 4 (pid 102) gets 1.0% of a processor where other ranks on host a get 50%"
        assert diagnosis.causes[0].sentence.startswith(text)


def blocked(*looks: list[int]) -> Proc:
    one = proc("p0")
    one = one._replace(threads=(one.threads[0]._replace(native=77),))
    before, now = ({"threads": {"number": 3, "blocked": list(look)}, "disk": {"read": 0, "written": 0}} for look in looks)
    return with_resources(one, before, **now)


@pytest.mark.parametrize(
    "first, second, doing, causes", [([77], [77], 9.0, 1), ([77], [], 9.0, 0), ([], [77], 9.0, 0), ([77], [77], 2.0, 0)]
)
def test_wait_for_a_disk_needs_two_looks(first: list[int], second: list[int], doing: float, causes: int) -> None:
    diagnosis = found(blocked(first, second), doing=doing)
    assert [cause.detector for cause in diagnosis.causes] == ["disk"] * causes
    if causes:
        assert diagnosis.causes[0].sentence.startswith("trainer (pid 100) has waited for a disk in p0.py:10 in step for 9.0 s")


def connection(here: str, there: str, **values: int) -> dict[str, Any]:
    names = "retries unacknowledged since_sent_ms since_received_ms round_trip_us resent acknowledged_bytes received_bytes sent_segments"
    names += " received_segments unsent_bytes least_round_trip_us delivery_rate busy_us receiver_limited_us"
    return {"here": [here, 1], "there": [there, 2], **dict.fromkeys(names.split(), 0), **values}


def linked(before: dict[str, int], now: dict[str, int]) -> Diagnosis:
    looks = [
        {"clock": [at, at], "connections": [connection("10.0.0.1", "10.0.0.2", **values)]} for at, values in ((5.0, before), (6.0, now))
    ]
    other = {"clock": [6.0, 6.0], "connections": [connection("10.0.0.2", "10.0.0.1")]}
    return found(
        CLIENT, hosts=(Host("a", resources=looks[1], resources_before=looks[0]), Host("b", resources=other, resources_before=other))
    )


@pytest.mark.parametrize(
    "before, now, causes",
    [
        ({"resent": 40, "sent_segments": 900}, {"resent": 60, "sent_segments": 1000}, 1),
        # Lost in the past, and none since.
        ({"resent": 60, "sent_segments": 900}, {"resent": 60, "sent_segments": 1000}, 0),
        ({"resent": 11, "sent_segments": 9000}, {"resent": 12, "sent_segments": 10000}, 0),
    ],
)
def test_link_that_loses_segments_is_a_cause(before: dict[str, int], now: dict[str, int], causes: int) -> None:
    diagnosis = linked(before, now)
    assert len(diagnosis.causes) == causes
    if causes:
        text = "the link from host a to host b loses data: 60 of 1,000 segments were sent again (6%)"
        assert diagnosis.causes[0].sentence == text


@pytest.mark.parametrize("acknowledged, receiver, causes", [(_MIB // 2, 0, 1), (_MIB // 2, 900_000, 0), (64 * _MIB, 0, 0)])
def test_only_a_slow_link_is_a_cause(acknowledged: int, receiver: int, causes: int) -> None:
    now = {"unsent_bytes": 2 * _MIB, "acknowledged_bytes": acknowledged, "busy_us": 1_000_000, "receiver_limited_us": receiver}
    diagnosis = linked({"unsent_bytes": _MIB}, now)
    assert len(diagnosis.causes) == causes
    if causes:
        assert diagnosis.causes[0].sentence == "the link from host a to host b is slow: 0.50 MiB/s while 1.0 MiB wait to be sent"


@pytest.mark.parametrize("round_trip, text", [(45_000, "is slow: 0.50 MiB/s"), (900, "loses data: 60 of 1,000 segments")])
def test_round_trip_decides_slow_or_lossy(round_trip: int, text: str) -> None:
    before = {"unsent_bytes": _MIB, "resent": 40, "sent_segments": 900}
    now = {
        "unsent_bytes": 2 * _MIB,
        "acknowledged_bytes": _MIB // 2,
        "busy_us": 1_000_000,
        "resent": 60,
        "sent_segments": 1000,
        "round_trip_us": round_trip,
        "least_round_trip_us": 100,
    }
    [cause] = linked(before, now).causes
    assert text in cause.sentence


def test_host_without_a_report_has_the_other_address() -> None:
    looks = [
        {"clock": [at, at], "connections": [connection("10.0.0.1", "10.0.0.2", **values)]}
        for at, values in ((5.0, {"unsent_bytes": _MIB}), (6.0, {"unsent_bytes": _MIB, "busy_us": 1_000_000}))
    ]
    hosts = (Host("a", resources=looks[1], resources_before=looks[0]), Host("b"))
    [cause] = found(CLIENT, hosts=hosts).causes
    assert cause.sentence.startswith("the link from host a to host b is slow")


def test_slow_link_explains_a_host_without_an_answer() -> None:
    looks = [
        {"clock": [at, at], "connections": [connection("10.0.0.1", "10.0.0.2", **values)]}
        for at, values in ((5.0, {"unsent_bytes": _MIB}), (6.0, {"unsent_bytes": _MIB, "busy_us": 1_000_000}))
    ]
    hosts = (Host("a", resources=looks[1], resources_before=looks[0]), Host("b", error="no answer"))
    [cause] = found(CLIENT, hosts=hosts).causes
    assert cause.sentence.startswith("the link from host a to host b is slow: 0.00 MiB/s")


def test_clock_of_one_host_differs() -> None:
    procs = [with_resources(proc(f"p{n}", n, 3, "b" if n == 1 else "a"), clock=[1000.0 + 3600 * (n == 1), 5.0]) for n in range(3)]
    [cause] = found(with_resources(CLIENT, clock=[1002.0, 5.0]), *procs).causes
    assert cause.sentence == "the clock of host b is 60 min ahead of the clocks of the other 3 procs"


def test_hosts_that_were_lost_are_one_cause() -> None:
    ends = tuple(End("trainer", n, "host_lost", 3, "m", detail="silent for 2.7s", host=f"h{n}") for n in (1, 2))
    [cause] = diagnosed(Snapshot((CLIENT,), ends=ends), OWN).causes
    assert cause.sentence == "2 hosts were lost: h1, h2: silent for 2.7s"


@pytest.mark.parametrize(
    "values, text",
    [
        (
            {"free": 0, "size": 64 * _MIB},
            "/dev/shm of host a is full: 0.0 of 64 MiB are free; trainer (pid 100) uses 60 MiB of shared memory",
        ),
        ({"free_files": 0}, "/dev/shm of host a has no free inode of 100"),
        ({"read_only": True, "is_temporary": True}, "/dev/shm of host a is mounted read-only"),
        ({"read_only": True}, ""),
        ({"hangs": 3.0}, "/dev/shm of host a does not answer: a call to it takes longer than 1 s"),
        ({"hangs": 0.3}, ""),
    ],
)
def test_file_system_of_a_process_has_limits(values: dict[str, Any], text: str) -> None:
    folder = {"folder": "/dev/shm", "device": 5, "free": _MIB * 32, "free_files": 50, "files": 100, "read_only": False, "size": 64 * _MIB}
    one = {**folder, "is_temporary": False, **values}
    procs = [with_resources(proc("p0"), file_systems=[one], memory={"anonymous": 0, "shared": 60 * _MIB})]
    assert [cause.sentence for cause in found(*procs).causes] == [text] * bool(text)


@pytest.mark.parametrize("resources", [{"cgroups": 3}, {"descriptors": {"number": 1}}, {"file_systems": [{"folder": 3}]}])
def test_malformed_resources_make_no_check(resources: dict[str, Any]) -> None:
    assert not resource_checks([with_resources(proc("p0"), **resources)])
