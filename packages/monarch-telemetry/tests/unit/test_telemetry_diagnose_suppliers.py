"""Detectors of loaders, names, starts and output, over rows that are written by hand."""

from __future__ import annotations

from typing import Any

import pytest
from support.made_up_waits import CLIENT, actor, proc

from monarch.telemetry._diagnose.diagnosis import Diagnosis, diagnosed
from monarch.telemetry._diagnose.group_rank import Call, Counted, GroupRank
from monarch.telemetry._diagnose.registry import OWN
from monarch.telemetry._diagnose.snapshot import Actor, Check, Frame, Host, Proc, Snapshot, Thread, Wait
from monarch.telemetry._diagnose.supplies import Lookup, Program, Supply, lookups_of, supplies_of

MIB = 1 << 20
LOADER = Thread(8, "loader", (Frame("/srv/load.py", 4, "read"),), True)
PROGRAM = Program(77, "python3", "S", "pipe_read", "reads /data/part-7")


def with_loader(rank: int, *threads: Thread) -> Proc:
    one = proc(f"p{rank}", rank, 3)
    return one._replace(threads=(*one.threads, *threads))


def waited_for(ranks: tuple[int, ...], endpoint: str = "step") -> Wait:
    """The client waits for these ranks."""
    return Wait("c", 1, True, 1, endpoint, "trainer", "mtrainer", 3, len(ranks), tuple((rank, f"p{rank}") for rank in ranks))


def found(
    procs: list[Proc], *supplies: Supply, working: tuple[int, ...] = (1,), doing: float = 41.0, waits: bool = True, **more: Any
) -> Diagnosis:
    """A job of which these ranks run a step for which the client waits, and the others none."""
    actors = tuple(actor(one.uid, "trainer", "step" if rank in working else None, doing, rank, 3) for rank, one in enumerate(procs))
    of_client = (waited_for(working),) if waits else ()
    return diagnosed(Snapshot((CLIENT, *procs), actors, (Host("a"),), of_client, supplies=supplies, seconds=0.5, **more), OWN)


def job(*threads: Thread) -> list[Proc]:
    return [with_loader(0), with_loader(1, *threads), with_loader(2)]


def test_thread_that_loads_nothing_is_the_cause() -> None:
    [cause] = found(job(LOADER), Supply("p1", 7, "queue", (8,))).causes
    assert cause.sentence == (
        "thread loader of workers rank 1 stands in load.py:4 in read, and trainer rank 1 of 3 (pid 101)"
        " has waited for an item of a queue in p1.py:11 in step for 41 s"
    )
    assert cause.detector == "starving" and "the client" in cause.waiting


def test_program_that_loads_nothing_is_the_cause() -> None:
    [cause] = found(job(), Supply("p1", 7, "pipe", (), (PROGRAM, PROGRAM._replace(pid=78)))).causes
    assert cause.sentence.startswith(
        "the program python3 (pid 77) and 1 more supply nothing (state S in the kernel at pipe_read, reads /data/part-7), and"
        " trainer rank 1 of 3 (pid 101) has waited for data of a pipe"
    )
    assert cause.command == "cat /proc/77/wchan"


def test_last_loader_of_a_chain_is_the_cause() -> None:
    pinning = Thread(8, "pin", (Frame("/srv/pin.py", 4, "pin"),), True)
    [cause] = found(job(pinning), Supply("p1", 7, "queue", (8,)), Supply("p1", 8, "pipe", (), (PROGRAM,))).causes
    assert cause.sentence.startswith("the program python3 (pid 77)")


@pytest.mark.parametrize("threads", [(), (8,)])
def test_queue_of_a_server_is_no_cause(threads: tuple[int, ...]) -> None:
    server = LOADER._replace(frames=(Frame("/usr/lib/python3.11/socketserver.py", 232, "serve_forever"), *LOADER.frames))
    assert not found(job(server), Supply("p1", 7, "queue", threads)).causes


def test_loader_that_works_is_no_cause() -> None:
    assert not found(job(LOADER._replace(paused=False)), Supply("p1", 7, "queue", (8,))).causes
    assert not found(job(), Supply("p1", 7, "pipe", (), (PROGRAM,), still=False)).causes


@pytest.mark.parametrize(
    "working, doing, waits",
    [
        ((1,), 2.0, True),  # a short wait
        ((0, 1, 2), 41.0, True),  # all ranks work
        ((1,), 41.0, False),  # no process waits for it
    ],
)
def test_wait_without_a_late_rank_is_no_cause(working: tuple[int, ...], doing: float, waits: bool) -> None:
    assert not found(job(LOADER), Supply("p1", 7, "queue", (8,)), working=working, doing=doing, waits=waits).causes


@pytest.mark.parametrize("begun, detectors", [(4000, ["starving"]), (4, [])])
def test_ranks_in_a_collective_count_after_long(begun: int, detectors: list[str]) -> None:
    procs = [one._replace(age=40.0) for one in job(LOADER)]
    call = Call(7, "all_reduce", (4,), "float32")
    groups = tuple(
        GroupRank(f"p{rank}", ("workers", "0", "m"), rank, 3, (Counted(begun + (rank != 1), None if rank == 1 else call),) * 3)
        for rank in range(3)
    )
    diagnosis = found(procs, Supply("p1", 7, "queue", (8,)), working=(0, 1, 2), groups=groups, group_seconds=1.5)
    assert [cause.detector for cause in diagnosis.causes] == detectors


def test_name_and_server_are_in_the_cause() -> None:
    [cause] = found(job(), lookups=(Lookup("p1", 7, "getaddrinfo", "store.example", ("10.0.0.53",)),)).causes
    assert cause.sentence == (
        "trainer rank 1 of 3 (pid 101) has waited for the address of the name store.example in p1.py:11 in step for 41 s:"
        " the name server 10.0.0.53 does not answer"
    )


def test_name_for_a_loader_is_the_cause() -> None:
    lookup = Lookup("p1", 8, "gethostbyname")
    [cause] = found(job(LOADER), Supply("p1", 7, "queue", (8,)), lookups=(lookup,)).causes
    text = "has waited for the address of a name by thread loader of workers rank 1 in load.py:4 in read for 41 s: no name server answers"
    assert cause.detector == "names" and text in cause.sentence


def test_supplies_and_lookups_are_those_of_both_looks() -> None:
    now: dict[str, Any] = {
        "supplies": [
            {"thread": 7, "kind": "pipe", "threads": [8], "programs": [[77, "python3", "S", "pipe_read", ""], [78, "a", "R", "", ""]]}
        ],
        "lookups": {"threads": [{"thread": 7, "function": "getaddrinfo", "name": "a"}], "servers": ["10.0.0.53"]},
    }
    before: dict[str, Any] = {
        "supplies": [{"thread": 7, "kind": "pipe", "threads": [8, 9], "programs": [[77, "python3", "S", "pipe_read", ""]]}],
        "lookups": {"threads": [{"thread": 7, "function": "getaddrinfo", "name": "b"}], "servers": []},
    }
    assert supplies_of("p", before, now) == (Supply("p", 7, "pipe", (8,), (PROGRAM._replace(file=""),)),)
    assert lookups_of("p", before, now) == () and lookups_of("p", now, now)[0].servers == ("10.0.0.53",)
    now["supplies"][0]["programs"][0][2] = "R"
    assert not supplies_of("p", before, now)[0].still
    assert supplies_of("p", {}, now) == supplies_of("p", None, now) == ()


@pytest.mark.parametrize("age, ready, causes", [(41.0, 2, 1), (4.0, 2, 0), (41.0, 0, 0)])
def test_process_that_is_slow_to_start_is_named(age: float, ready: int, causes: int) -> None:
    main = (Thread(9, "", (Frame("/srv/set_up.py", 3, "build"),)),)
    procs = [
        proc(f"p{rank}", rank, 3)._replace(state="running" if rank < ready else "starting", age=age, threads=main if rank == 2 else ())
        for rank in range(3)
    ]
    diagnosis = diagnosed(Snapshot((CLIENT, *procs), (), (Host("a"),)), OWN)
    assert len(diagnosis.causes) == causes
    if causes:
        text = "workers rank 2 of 3 (pid 102) has been starting for 41 s, and 2 other ranks are ready; it stands in set_up.py:3 in build"
        assert diagnosis.causes[0].sentence == text


@pytest.mark.parametrize("doing, seconds, queued, causes", [("__init__", 41.0, 1, 1), ("__init__", 4.0, 1, 0), ("__init__", 41.0, 0, 0)])
def test_constructor_that_lasts_is_named(doing: str, seconds: float, queued: int, causes: int) -> None:
    procs = job()
    actors: list[Actor] = [actor(one.uid, "trainer", doing if rank == 1 else None, seconds, rank, 3) for rank, one in enumerate(procs)]
    actors[1] = actors[1]._replace(queued=queued)
    diagnosis = diagnosed(Snapshot((CLIENT, *procs), tuple(actors), (Host("a"),)), OWN)
    assert len(diagnosis.causes) == causes
    if causes:
        text = (
            "trainer rank 1 of 3 (pid 101) has been in its constructor for 41 s, and 2 other ranks are ready; it stands in p1.py:11 in step"
        )
        assert diagnosis.causes[0].sentence == text


def printing(rank: int, size: int, before: int, *, blocked: bool = False) -> Proc:
    threads = {"threads": {"number": 3, "printing": [70] if blocked else []}}
    one = proc(f"p{rank}", rank, 3)
    one = one._replace(threads=(one.threads[0]._replace(native=70),), resources=threads, resources_before=threads)
    return one._replace(printed=(size, size // 50), printed_before=(before, before // 50))


@pytest.mark.parametrize(
    "sizes, blocked, text",
    [
        (
            (9 * MIB, 9 * MIB),
            (1,),
            "trainer rank 1 of 3 (pid 101) prints far more than the other ranks: 9.0 MiB in 188,743 lines, 0.00 MiB/s now",
        ),
        (
            (9 * MIB, 8 * MIB),
            (),
            "trainer rank 1 of 3 (pid 101) prints far more than the other ranks: 9.0 MiB in 188,743 lines, 2.00 MiB/s now",
        ),
        ((9 * MIB, 9 * MIB), (), ""),  # a burst that is over
        ((90_000, 80_000), (), ""),
        ((2000, 1000), (1,), "the output of the job is not taken: trainer rank 1 of 3 (pid 101) waits to print in p1.py:11 in step"),
        ((2000, 1000), (), ""),
    ],
)
def test_output_for_which_others_wait_is_a_cause(sizes: tuple[int, int], blocked: tuple[int, ...], text: str) -> None:
    procs = [printing(rank, *(sizes if rank == 1 else (500, 400)), blocked=rank in blocked) for rank in range(3)]
    sentences = [cause.sentence for cause in found(procs).causes]
    assert len(sentences) == bool(text) and all(one.startswith(text) for one in sentences)


def test_full_console_shows_a_burst_between_writes() -> None:
    printing_client = {"threads": {"number": 3, "printing": [5]}}
    client = CLIENT._replace(resources=printing_client, resources_before=printing_client)
    procs = [printing(rank, 90_000 if rank == 1 else 12, 90_000 if rank == 1 else 12) for rank in range(3)]
    actors = tuple(actor(one.uid, "trainer", "step" if rank == 1 else None, 41.0, rank, 3) for rank, one in enumerate(procs))
    [cause] = diagnosed(Snapshot((client, *procs), actors, (Host("a"),), (waited_for((1,)),), seconds=0.5), OWN).causes
    assert cause.detector == "output"


def with_memory(rank: int, before: dict[str, int], now: dict[str, int]) -> Proc:
    return proc(f"p{rank}", rank, 3)._replace(resources={"memory": now}, resources_before={"memory": before})


@pytest.mark.parametrize("swapped, faults, doing, causes", [(64, 900, 9.0, 1), (1, 900, 9.0, 0), (64, 5, 9.0, 0), (64, 900, 2.0, 0)])
def test_rank_that_reads_swap_is_named(swapped: int, faults: int, doing: float, causes: int) -> None:
    quiet = {"swapped": 0, "major_faults": 3}
    before, now = ({"swapped": swapped * MIB, "major_faults": number} for number in (100, 100 + faults))
    procs = [with_memory(rank, *((before, now) if rank == 1 else (quiet, quiet))) for rank in range(3)]
    diagnosis = found(procs, doing=doing)
    assert [cause.detector for cause in diagnosis.causes] == ["swap"] * causes
    if causes:
        text = "trainer rank 1 of 3 (pid 101) waits for memory in swap: 64 MiB are there, and it reads 1,800 pages/s"
        assert diagnosis.causes[0].sentence == f"{text} in step() since 9.0 s"


def test_rank_that_keeps_the_gil_in_swap() -> None:
    procs = job()
    procs[1] = procs[1]._replace(silent=1.5, kernel="D", answered=False, stacks_without_gil=True)
    checks = tuple(Check(kind, "a", "p1", value, 0.0, ("p1",)) for kind, value in (("swapped", 64.0 * MIB), ("swap_reads", 900.0)))
    [cause] = found(procs, checks=checks).causes
    assert cause.detector == "swap" and "it reads 900 pages/s" in cause.sentence
    assert any("is blocked in the kernel" in one for one in cause.consequences)


@pytest.mark.parametrize(
    "size, grows, others, steps, causes",
    [(900, 2, 60, 1, 1), (900, 0, 60, 1, 0), (900, 2, 500, 1, 0), (200, 2, 20, 1, 0), (900, 2, 60, 0, 0)],
)
def test_rank_whose_memory_grows_is_named(size: int, grows: int, others: int, steps: int, causes: int) -> None:
    procs = [
        with_memory(rank, {"anonymous": (size - grows) * MIB}, {"anonymous": size * MIB})
        if rank == 1
        else with_memory(rank, {"anonymous": others * MIB}, {"anonymous": others * MIB})
        for rank in range(3)
    ]
    actors = tuple(
        actor(one.uid, "trainer", None, 0.0, rank, 3)._replace(taken=9 + steps, taken_before=9, queued_before=0)
        for rank, one in enumerate(procs)
    )
    diagnosis = diagnosed(Snapshot((CLIENT, *procs), actors, (Host("a"),), seconds=0.5), OWN)
    assert [cause.detector for cause in diagnosis.causes] == ["growth"] * causes
    if causes:
        text = "the memory of trainer rank 1 of 3 (pid 101) grows: 900 MiB and 4.0 MiB/s more, other ranks have 60 MiB"
        assert diagnosis.causes[0].sentence == text


def test_first_rank_without_a_number_is_named() -> None:
    def row(rank: int, at: float, step: float | None = 20.0) -> dict[str, Any]:
        resource = f'{{"monarch.mesh": "workers", "monarch.rank": {rank}, "process.pid": {100 + rank}}}'
        return {"name": "loss", "resource": resource, "first_us": int(at * 1e6), "is_nan": True, "now_us": 60_000_000, "step": step}

    procs = job()
    rows = {"numbers": [row(1, 18.9), row(0, 19.1), row(2, 19.2)]}
    [cause] = diagnosed(
        Snapshot((CLIENT, *procs), tuple(actor(one.uid, "trainer", None, 0.0, r, 3) for r, one in enumerate(procs)), rows=rows), OWN
    ).causes
    assert cause.sentence == (
        "the metric loss of trainer rank 1 of 3 (pid 101) is NaN since 41 s at step 20: it was finite before, and 2 other ranks followed"
    )
    assert ("the next rank 0.200000 s after it", "table metric_gauges") in cause.facts
