"""Merged stacks: what is equal, what is left out, and that the order of merging does not matter."""

from __future__ import annotations

import json
import random
from functools import reduce

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.looked_at import RUNTIME, START, STEP, WAITING, look, proc, thread, worker

from monarch.telemetry._stacks.frames import Frame, Local, ProcStacks, Thread, procs_of_look
from monarch.telemetry._stacks.merged import StackReport
from monarch.telemetry._stacks.outside import complete
from monarch.telemetry._stacks.place import parse_place
from monarch.telemetry._stacks.result import BinaryNotFound, Failed, Ok, Result
from monarch.telemetry.errors import TelemetryError

FRAMES = st.sampled_from(
    [
        Frame("Trainer.step", "/srv/train.py", 33),
        Frame("step", "/srv/train.py", 33),
        Frame("forward", "/srv/model.py", 71, locals=(Local("x", 1, True, "3"),)),
        Frame("forward", "/srv/model.py", 71, locals=(Local("x", 1, True, "4"),)),
        Frame("LocalActor._run_sync", RUNTIME, 209),
        Frame("std::wait.part.0", "wait.cc", 0, "/lib/libx.so"),
    ]
)
THREADS = st.builds(
    Thread,
    st.integers(0, 3),
    st.sampled_from([None, "actor w", "Thread-1 (run)", "Thread-2 (run)"]),
    st.lists(FRAMES, max_size=4).map(tuple),
    owns_gil=st.sampled_from([None, True, False]),
)
NAMES = st.sampled_from(["client", "<root>.<single>"]) | st.builds(
    "<root>.<{}{{'x': {}/9}}>".format, st.sampled_from("ab"), st.integers(0, 8)
)
PROCS = st.builds(
    ProcStacks,
    st.integers(0, 99),
    st.integers(1, 99),
    NAMES.map(parse_place),
    st.lists(THREADS, max_size=3).map(tuple),
    note=st.sampled_from([None, "the GIL is held"]),
    unread=st.sampled_from([None, None, None, "stopped by a signal", "busy"]),
)
REPORTS = st.lists(PROCS, max_size=6).map(StackReport.of) | st.just(StackReport.of_missing_host("h", "no answer"))


def merge(*reports: StackReport) -> StackReport:
    return StackReport.merge(reports)


@given(st.lists(PROCS, max_size=12), st.randoms(use_true_random=False), st.lists(st.integers(0, 12), max_size=4))
@settings(max_examples=200, deadline=None)
def test_parts_of_any_split_merge_to_the_whole(procs: list[ProcStacks], shuffle: random.Random, cuts: list[int]) -> None:
    whole = StackReport.of(procs)
    shuffled = list(procs)
    shuffle.shuffle(shuffled)
    edges = [0, *sorted(min(cut, len(procs)) for cut in cuts), len(procs)]
    parts = [StackReport.of(shuffled[first:last]) for first, last in zip(edges, edges[1:], strict=False)]
    assert StackReport.merge(parts) == whole
    assert reduce(merge, parts, StackReport()) == whole


@given(REPORTS, REPORTS, REPORTS)
@settings(max_examples=100, deadline=None)
def test_merge_is_associative_and_order_free(a: StackReport, b: StackReport, c: StackReport) -> None:
    assert merge(merge(a, b), c) == merge(a, merge(b, c)) == merge(c, b, a)
    assert merge(a) == merge(a, StackReport()) == a


@given(REPORTS)
@settings(max_examples=100, deadline=None)
def test_report_is_equal_after_its_json(report: StackReport) -> None:
    assert StackReport.from_json(json.loads(json.dumps(report.to_json()))) == report


@given(st.lists(PROCS, max_size=8))
@settings(max_examples=100, deadline=None)
def test_each_proc_is_counted_where_it_belongs(procs: list[ProcStacks]) -> None:
    report = StackReport.of(procs, idle=True)
    read = [one for one in procs if one.unread is None]
    assert sum(entry.threads for entry in report.entries) == sum(len(one.threads) for one in read)
    idle = [one for one in read if not one.threads]
    assert sum(one.procs for one in report.idle) == sum(one.note is None for one in idle)
    noted = sum(one.note is not None for one in idle)
    assert sum(place.procs for entry in report.unread for place in entry.places) == len(procs) - len(read) + noted


def test_1000_equal_stacks_print_as_few_lines() -> None:
    procs = procs_of_look(
        look(*(worker(rank, 1000, thread(rank, "actor w", STEP), thread(9, "MainThread", WAITING)) for rank in range(1000)))
    )
    assert str(StackReport.of(procs)).splitlines() == [
        "1,000 x actor w in workers[0-999]",
        '    File "/srv/train.py", line 33, in Trainer.step',
        '    File "/srv/model.py", line 71, in Model.forward',
    ]


def test_deep_stack_prints_its_ends() -> None:
    deep = [["/srv/deep.py", line, f"f{line}"] for line in range(90, 0, -1)]
    report = StackReport.of(procs_of_look(look(*(worker(rank, 1000, thread(1, "actor w", deep)) for rank in range(1000)))))
    lines = str(report).splitlines()
    assert len(lines) <= 20
    assert lines[1].endswith("in f1")
    assert lines[5] == "    … 74 more calls"
    assert lines[-1].endswith("in f90")
    assert len(lines) - 2 + 74 == 90
    assert len(report.entries[0].calls) == 90


def test_distinct_idle_and_silent_procs_have_their_lines() -> None:
    other = [["/srv/io.py", 8, "load"], *WAITING]
    procs = [worker(rank, 6, thread(1, "actor w", other if rank == 2 else WAITING if rank == 5 else STEP)) for rank in range(6)]
    procs[4] = proc(5, "<root>.<workers{'gpus': 4/6}>", None, kernel="T")
    report = merge(StackReport.of(procs_of_look(look(*procs))), StackReport.of_missing_host("trainer-9", "not within 8 s"))
    assert str(report).splitlines() == [
        "3 x actor w in workers[0-1,3]",
        '    File "/srv/train.py", line 33, in Trainer.step',
        '    File "/srv/model.py", line 71, in Model.forward',
        "1 x actor w in workers[2]",
        '    File "/srv/io.py", line 8, in load',
        "1 x no stack of workers[4]: stopped by a signal",
        "1 x nothing to do in workers[5]",
        "host trainer-9 has not answered: not within 8 s",
    ]
    assert str(StackReport()) == "no procs"


def test_threads_that_wait_are_kept_on_request() -> None:
    procs = procs_of_look(look(worker(0, 1, thread(1, "actor w", WAITING))))
    assert StackReport.of(procs).entries == ()
    (entry,) = StackReport.of(procs, idle=True).entries
    assert [call.name for call in entry.calls] == ["LocalActor._run_sync", "LocalActor._live", "Thread.run"]


def test_runtime_that_does_not_wait_is_shown_whole() -> None:
    hung = [[RUNTIME, 451, "LocalActor._finish"], *START]
    (entry,) = StackReport.of(procs_of_look(look(worker(0, 1, thread(1, "actor w", hung))))).entries
    assert len(entry.calls) == 3


def test_first_call_of_the_framework_is_shown() -> None:
    nested = [["/srv/b.py", 2, "callback"], [RUNTIME, 9, "_run"], [RUNTIME, 8, "Future.get"], ["/srv/a.py", 1, "main"], *START]
    waits = [["/lib/threading.py", 327, "Condition.wait"], ["/lib/threading.py", 629, "Event.wait"], ["/srv/a.py", 1, "main"], *START]
    procs = procs_of_look(look(worker(0, 1, thread(1, "a", nested), thread(2, "b", waits))))
    names = {entry.thread: [call.name for call in entry.calls] for entry in StackReport.of(procs).entries}
    assert names == {"a": ["callback", "Future.get", "main"], "b": ["Event.wait", "main"]}


def test_unqualified_stack_takes_qualified_names_of_others() -> None:
    calls = [(Frame("step", "/srv/train.py", 33),), (Frame("Trainer.step", "/srv/train.py", 33),)]
    place = parse_place("<root>.<w{'x': 0/2}>")
    procs = [ProcStacks(one, one, place, (Thread(1, "actor w", frames),)) for one, frames in enumerate(calls)]
    for order in (procs, procs[::-1]):
        (entry,) = StackReport.of(order).entries
        assert (entry.calls[0].name, entry.procs) == ("Trainer.step", 2)


def test_native_names_are_compared_whole() -> None:
    place = parse_place("client")
    frames = [Frame(name, "x.cc", 0, "/lib/libx.so") for name in ("read.part.0", "write.part.0")]
    report = StackReport.of(
        [ProcStacks(1, 1, place, tuple(Thread(i, None, (one, Frame("f", "/a.py", 1))) for i, one in enumerate(frames)))]
    )
    assert [entry.threads for entry in report.entries] == [1, 1]


def test_threads_of_a_pool_are_one_entry() -> None:
    names = ["ThreadPoolExecutor-0_0", "ThreadPoolExecutor-0_1", "ThreadPoolExecutor-3_0"]
    report = StackReport.of(procs_of_look(look(worker(0, 2, *(thread(i, name, STEP) for i, name in enumerate(names))))))
    assert str(report).splitlines()[0] == "1 x ThreadPoolExecutor in workers[0], 3 threads"


def test_names_of_actors_keep_their_numbers() -> None:
    report = StackReport.of(procs_of_look(look(worker(0, 1, *(thread(i, f"actor stage-{i}", STEP) for i in range(2))))))
    assert [entry.thread for entry in report.entries] == ["actor stage-0", "actor stage-1"]


def test_holder_of_the_gil_is_named() -> None:
    holds, waits = (Thread(i, f"t{i}", (Frame("f", "/a.py", i),), owns_gil=i == 1) for i in (1, 2))
    place = parse_place("client")
    held = StackReport.of([ProcStacks(1, 1, place, (holds, waits), "py-spy", note="the GIL is held")])
    assert {entry.thread: entry.note for entry in held.entries} == {"t1": "holds the GIL", "t2": "the GIL is held"}
    # In a running proc, some thread holds it at any time.
    assert {entry.note for entry in StackReport.of([ProcStacks(1, 1, place, (holds, waits), "py-spy")]).entries} == {None}


def test_locals_are_those_of_the_first_rank() -> None:
    def one(rank: int) -> ProcStacks:
        frame = Frame("f", "/a.py", 1, locals=tuple(Local(f"v{i}", 1, False, str(rank)) for i in range(10)))
        return ProcStacks(rank, rank, parse_place(f"<root>.<w{{'x': {rank}/9}}>"), (Thread(1, "t", (frame,)),))

    lines = str(StackReport.of([one(7), one(2), one(4)])).splitlines()
    assert lines[2] == "        v0 = 2"
    assert lines[-1] == "        … 2 more"


def test_names_cannot_change_the_terminal_or_add_lines() -> None:
    evil = [["/srv/\x1b[31m.py", 1, "f\n\nin g"]]
    text = str(StackReport.of(procs_of_look(look(worker(0, 1, thread(1, "a\rb", evil))))))
    assert len(text.split("\n")) == 2
    assert text.replace("\n", "").isprintable()


def test_report_of_many_different_stacks_is_bounded() -> None:
    procs = procs_of_look(look(*(worker(rank, 900, thread(1, "actor w", [["/srv/a.py", rank + 1, "f"]])) for rank in range(900))))
    lines = str(StackReport.of(procs)).splitlines()
    assert lines[-1] == "… 850 more stacks of 850 threads"
    scattered = procs_of_look(look(*(worker(rank, 900, thread(1, "actor w", STEP)) for rank in range(0, 900, 2))))
    assert str(StackReport.of(scattered)).splitlines()[0] == "450 x actor w in workers[0,2,4,6,8,10,12,14,16,18,20,22,… 450 ranks]"


@pytest.mark.parametrize(
    ("change", "culprit"),
    [
        ({"threads": -1}, "entries[0].threads is -1"),
        ({"thread": None}, "entries[0].thread is missing"),
        ({"frames": [{"filename": 1}]}, "entries[0].frames[0].filename is 1"),
        ({"places": [{"path": "p", "ranks": "1-0", "procs": 1}]}, "entries[0].places[0].ranks is '1-0'"),
        ({"sample": {"path": "p", "rank": 0, "thread_id": 1, "locals": []}}, "entries[0].sample.locals is 0, not one for each of 2 frames"),
        ({"sample": {"path": "p", "rank": 0, "thread_id": 1, "locals": [[["x"]], []]}}, "entries[0].sample.locals[0]"),
    ],
)
def test_malformed_report_names_the_field(change: dict[str, object], culprit: str) -> None:
    entry = StackReport.of(procs_of_look(look(worker(0, 1, thread(1, "actor w", STEP))))).entries[0].to_json()
    with pytest.raises(TelemetryError) as caught:
        StackReport.from_json({"entries": [{**entry, **change}]})
    assert culprit in str(caught.value)


def test_procs_without_an_answer_are_read_from_outside() -> None:
    procs = procs_of_look(
        look(
            worker(0, 4, thread(1, "actor w", STEP)),
            proc(2, "<root>.<workers{'gpus': 1/4}>", None, evidence="something keeps the GIL"),
            proc(3, "<root>.<workers{'gpus': 2/4}>", None, kernel="T"),
            proc(4, "<root>.<workers{'gpus': 3/4}>", None, kernel="D"),
        )
    )
    threads = (Thread(1, "actor w", (Frame("hold", "/srv/c.py", 5),), owns_gil=True),)
    asked: list[int] = []

    def read(pid: int) -> Result:
        asked.append(pid)
        return Ok(pid, "py-spy", threads) if pid == 1002 else Failed(pid, "py-spy", 1, f"Error: no way into process {pid}\nmore")

    found = complete(procs, read)
    assert sorted(asked) == [1002, 1003, 1004]
    assert [one.source for one in found] == ["gil", "py-spy", "gil", "gil"]
    assert str(StackReport.of(found)).splitlines()[-4:] == [
        "1 x actor w in workers[1] (holds the GIL)",
        '    File "/srv/c.py", line 5, in hold',
        "1 x no stack of workers[3]: blocked in the kernel; the process could not be read from outside: no way into the process",
        "1 x no stack of workers[2]: stopped by a signal; the process could not be read from outside: no way into the process",
    ]
    everywhere = complete(procs, lambda pid: Ok(pid, "py-spy", threads), every=True)
    assert {one.source for one in everywhere} == {"py-spy"}


def test_stack_of_the_proc_itself_stays_without_pyspy() -> None:
    text = 'Thread 0x1 (most recent call first):\n  File "/srv/c.py", line 5 in hold\n'
    procs = procs_of_look(look(proc(1, "client", None, answer={"text": text, "without_gil": "the GIL is held"})))
    assert complete(procs, lambda _: BinaryNotFound(("/bin/py-spy",))) == procs


def test_finding_about_an_idle_proc_is_kept() -> None:
    waiting = procs_of_look(look(worker(0, 1, thread(1, "actor w", WAITING))))[0]
    stopped = waiting._replace(source="py-spy", note="stopped by a signal")
    assert str(StackReport.of([stopped])) == "1 x no stack of workers[0]: stopped by a signal; its threads wait for work"
    holder = stopped._replace(threads=tuple(one._replace(owns_gil=True) for one in stopped.threads))
    assert str(StackReport.of([holder])).startswith("1 x actor w in workers[0] (holds the GIL)\n")
