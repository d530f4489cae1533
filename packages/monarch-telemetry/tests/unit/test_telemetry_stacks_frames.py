"""Stacks from a look into a host, from the text of faulthandler, from py-spy's JSON and from results of others."""

from __future__ import annotations

import faulthandler
import json
import tempfile
import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.looked_at import STEP, look, proc, thread, worker

from monarch.telemetry._stacks.frames import Frame, Local, Thread, parse_faulthandler, procs_of_look, threads_of_pyspy
from monarch.telemetry._stacks.place import Place, parse_place
from monarch.telemetry._stacks.places import parse_ranks, print_ranks, ranks_of, size
from monarch.telemetry._stacks.result import BinaryNotFound, Failed, Ok, parse_result
from monarch.telemetry.errors import TelemetryError

NO_GIL = 'Thread 0x00007f01 (most recent call first):\n  File "/srv/a b.py", line 9 in hold\n  File "<string>", line ??? in <module>\n\n'
LOCAL = {"name": "x", "addr": 2**64 - 1, "arg": True, "repr": "1"}
FRAME = {"name": "f", "filename": "/a.py", "module": None, "short_filename": "a.py", "line": 3, "locals": [LOCAL], "is_entry": True}
TRACE = {"pid": 7, "thread_id": 1, "thread_name": "T", "os_thread_id": 8, "active": True, "owns_gil": False, "frames": [FRAME]}


@pytest.mark.parametrize(
    ("display", "place"),
    [
        ("client", Place("client", None, None)),
        ("<root>.<single>", Place("<root>.<single>", "single", None)),
        ("<root>.<w{'hosts': 1/2, 'gpus': 2/3}>", Place("<root>.<w>", "w", 5)),
        ("<root>.<looked at{'procs': 0/3}>", Place("<root>.<looked at>", "looked at", 0)),
        ("<root>.<m.Owner o{'x': 3/4}>.<sub{'y': 1/2}>", Place("<root>.<m.Owner o>.<sub>", "sub", 1)),
        ("<root>.<m.Owner o{'x': 3/4}>.<sub>", Place("<root>.<m.Owner o>.<sub>", "sub", None)),
    ],
)
def test_displayed_name_has_mesh_and_rank(display: str, place: Place) -> None:
    assert parse_place(display) == place


def test_place_is_shown_by_mesh_or_path() -> None:
    assert parse_place("<root>.<w{'g': 1/2}>").shown == "w"
    assert parse_place("<root>.<m.Owner o>.<w{'g': 1/2}>").shown == "<root>.<m.Owner o>.<w>"
    assert parse_place("client").shown == "client"
    assert [parse_place("<root>.<w>").is_of(one) for one in ("w", "<root>.<w>", "v")] == [True, True, False]


def test_answer_of_a_proc_has_threads_with_frames() -> None:
    (found,) = procs_of_look(look(worker(2, 4, thread(5, "actor w", STEP), thread(6, None, []))))
    assert (found.proc_id, found.pid, found.place.rank, found.source, found.note, found.unread) == (3, 1003, 2, "gil", None, None)
    assert [(one.thread_id, one.name, len(one.frames), one.owns_gil) for one in found.threads] == [
        (5, "actor w", 5, None),
        (6, None, 0, None),
    ]
    assert found.threads[0].frames[0] == Frame("Model.forward", "/srv/model.py", 71)


@pytest.mark.parametrize("field", ["answer", "stacks"])
def test_text_of_faulthandler_stands_for_an_answer(field: str) -> None:
    given = {"pid": 1001, "text": NO_GIL, **({"without_gil": "the GIL is held"} if field == "answer" else {})}
    (found,) = procs_of_look(look(proc(1, "client", None, evidence="something keeps the GIL", **{field: given})))
    assert (found.source, found.unread) == ("no_gil", None)
    assert found.note == {"answer": "the GIL is held", "stacks": "something keeps the GIL"}[field]
    assert found.threads == (Thread(0x7F01, None, (Frame("hold", "/srv/a b.py", 9), Frame("<module>", "<string>", 0))),)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"evidence": "something keeps the GIL"}, "something keeps the GIL"),
        ({"kernel": "T"}, "stopped by a signal"),
        ({"state": "starting"}, "no answer while starting"),
        ({"evidence": "busy", "stacks": {"pid": 1, "text": ""}}, "busy"),
    ],
)
def test_proc_without_stacks_has_the_reason(fields: dict[str, Any], reason: str) -> None:
    (found,) = procs_of_look(look(proc(1, "client", None, **fields)))
    assert (found.unread, found.threads) == (reason, ())


@pytest.mark.parametrize(
    ("document", "culprit"),
    [
        ([], "the document is [], not an object"),
        ({"procs": 3}, "procs is 3, not a list"),
        ({"procs": ["x"]}, "procs[0] is 'x', not an object"),
        (look(proc(1, "client", None, uid="xyz")), "procs[0].uid is 'xyz', not a hexadecimal number"),
        (look(proc(1, "client", None, pid="1")), "procs[0].pid is '1', not a whole number"),
        (look(proc(1, "client", None, pid=2**40)), "procs[0].pid is 1099511627776, not within"),
        (look(proc(1, "client", None, name=None)), "procs[0].name is missing, not a text"),
        (
            look(proc(1, "client", [thread(1, None, [["/a.py", 1]])])),
            "procs[0].answer.threads[0].frames[0] is ['/a.py', 1], not [file, line",
        ),
        (
            look(proc(1, "client", [thread(1, None, [["/a.py", True, "f"]])])),
            "procs[0].answer.threads[0].frames[0][1] is True, not a whole",
        ),
        (look(proc(1, "client", [thread(-1, None, [])])), "procs[0].answer.threads[0].thread is -1, not within 0 to"),
    ],
)
def test_malformed_look_names_the_field(document: object, culprit: str) -> None:
    with pytest.raises(TelemetryError) as caught:
        procs_of_look(document)
    assert culprit in str(caught.value)


def test_faulthandler_of_this_python_is_read() -> None:
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file)
        file.seek(0)
        found = parse_faulthandler(file.read())
    mine = {one.thread_id: one for one in found}[threading.get_ident()]
    frame = mine.frames[0]
    assert (frame.name, frame.filename) == ("test_faulthandler_of_this_python_is_read", __file__)
    assert frame.line > 1


@given(st.text())
@settings(max_examples=200, deadline=None)
def test_any_text_is_read_as_faulthandler(text: str) -> None:
    assert all(one.frames == () for one in parse_faulthandler(text) if '"' not in text)
    assert parse_faulthandler(f"{NO_GIL}{text}")[0].frames[0].name == "hold"


def test_pyspy_has_its_flags_and_locals() -> None:
    (found,) = threads_of_pyspy([TRACE])
    assert (found.thread_id, found.os_thread_id, found.active, found.owns_gil) == (1, 8, True, False)
    assert found.frames == (Frame("f", "/a.py", 3, None, "a.py", True, (Local("x", 2**64 - 1, True, "1"),)),)


def test_results_are_equal_after_their_json() -> None:
    ok = Ok(7, "/bin/py-spy", threads_of_pyspy([TRACE]), ("stopped",))
    for one in (ok, BinaryNotFound(("/a", "/b")), Failed(7, "/bin/py-spy", -9, "killed"), Failed(7, "/bin/py-spy", None, "")):
        assert parse_result(json.dumps(one.to_json())) == one
    assert ok.to_json()["Ok"] == {"pid": 7, "binary": "/bin/py-spy", "stack_traces": [TRACE], "warnings": ["stopped"]}


@pytest.mark.parametrize(
    ("document", "culprit"),
    [
        ("{", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("{}", "none of Ok, BinaryNotFound and Failed"),
        ({"Ok": {"pid": 1, "binary": "b"}}, "Ok.stack_traces is missing"),
        ({"Ok": {"pid": 1, "binary": "b", "stack_traces": [{**TRACE, "active": "yes"}]}}, "Ok.stack_traces[0].active is 'yes', not true"),
        (
            {"Ok": {"pid": 1, "binary": "b", "stack_traces": [{**TRACE, "frames": [{**FRAME, "line": 2**31}]}]}},
            "Ok.stack_traces[0].frames[0].line is 2147483648",
        ),
        (
            {"Ok": {"pid": 1, "binary": "b", "stack_traces": [{**TRACE, "frames": [{**FRAME, "locals": [{**LOCAL, "addr": -1}]}]}]}},
            "Ok.stack_traces[0].frames[0].locals[0].addr is -1",
        ),
        ({"BinaryNotFound": {"searched": [1]}}, "BinaryNotFound.searched[0] is 1, not a text"),
    ],
)
def test_malformed_result_names_the_field(document: object, culprit: str) -> None:
    with pytest.raises(TelemetryError) as caught:
        parse_result(document)
    assert culprit in str(caught.value)


@given(st.sets(st.integers(0, 60)))
@settings(max_examples=200, deadline=None)
def test_compressed_ranks_are_the_set(ranks: set[int]) -> None:
    found = ranks_of([*ranks, *ranks])
    assert {rank for first, last in found for rank in range(first, last + 1)} == ranks
    assert size(found) == len(ranks)
    assert parse_ranks("ranks", print_ranks(found)) == found
    assert all(last + 1 < first for (_, last), (first, _) in zip(found, found[1:], strict=False))


def test_ranks_are_printed_in_short() -> None:
    assert print_ranks(ranks_of([5, 0, 2, 3, 4])) == "0,2-5"
    assert print_ranks(ranks_of(range(0, 100, 2)), 3) == "0,2,4,… 50 ranks"


@pytest.mark.parametrize("text", ["3-1", "a", "1,", "-1", "1--2", " 1", "١"])
def test_malformed_ranks_are_refused(text: str) -> None:
    with pytest.raises(TelemetryError, match=r"entries\[0\].ranks"):
        parse_ranks("entries[0].ranks", text)
