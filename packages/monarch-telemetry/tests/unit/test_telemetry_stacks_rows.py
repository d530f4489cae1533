"""Rows of stacks: those of `stacks()` and those of stored dumps."""

from __future__ import annotations

from typing import Any

from support.looked_at import STEP, look, proc, thread, worker

from monarch.telemetry._engine.one_host import OneHost
from monarch.telemetry._stacks.frames import Frame, Local, Thread, procs_of_look
from monarch.telemetry._stacks.result import Ok
from monarch.telemetry._stacks.rows import dump_rows, stack_rows
from monarch.telemetry._tables.live import STACKS
from monarch.telemetry._tables.stacks import TABLES

HELD = 'Thread 0x7 (most recent call first):\n  File "/srv/c.py", line 5 in hold\n'
PROCS = procs_of_look(
    look(
        proc(0, "client", [thread(1, "MainThread", [["/srv/main.py", 3, "<module>"]])]),
        worker(1, 4, thread(2**64 - 1, "actor w", STEP), thread(3, None, [])),
        proc(9, "<root>.<single>", None, answer={"text": HELD, "without_gil": "the GIL is held"}),
        proc(10, "<root>.<silent>", None, kernel="T"),
    )
)


def test_each_frame_is_a_row_of_the_schema() -> None:
    batch = stack_rows(PROCS, "trainer-1")
    assert batch.schema.equals(STACKS.schema(), check_metadata=True)
    batch.validate(full=True)
    assert batch.num_rows == 1 + len(STEP) + 1
    rows = batch.to_pylist()
    common = {"host": "trainer-1", "proc_id": 2, "pid": 1002, "mesh_name": "workers", "rank": 1, "thread_id": 2**64 - 1}
    frame = {"frame_depth": 0, "name": "Model.forward", "filename": "/srv/model.py", "line": 71, "source": "gil"}
    assert rows[1] == {**common, "thread_name": "actor w", "owns_gil": None, **frame}
    assert [row["frame_depth"] for row in rows[1:-1]] == list(range(len(STEP)))
    assert [(row["mesh_name"], row["rank"], row["source"]) for row in (rows[0], rows[-1])] == [(None, None, "gil"), ("single", 0, "no_gil")]


def test_rows_of_one_mesh_and_of_none() -> None:
    assert {row["mesh_name"] for row in stack_rows(PROCS, "h", "workers").to_pylist()} == {"workers"}
    for empty in (stack_rows(PROCS, "h", "nowhere"), stack_rows((), "h")):
        assert empty.num_rows == 0
        assert empty.schema.equals(STACKS.schema(), check_metadata=True)


def test_owner_of_the_gil_is_known_from_outside() -> None:
    frame = Frame("hold", "/srv/c.py", 5)
    procs = [PROCS[0]._replace(threads=tuple(Thread(i, None, (frame,), owns_gil=i == 1) for i in (1, 2)), source="py-spy")]
    assert [(row["owns_gil"], row["source"]) for row in stack_rows(procs, "h").to_pylist()] == [(True, "py-spy"), (False, "py-spy")]


def dump() -> dict[str, Any]:
    values = (Local("x", 2**64 - 1, True, "1"), Local("y", 0, False, None))
    frames = (Frame("f", "/srv/a.py", 3, None, "a.py", False, values), Frame("_start", "", 0, "/lib/libc.so.6"))
    return dump_rows(Ok(7, "/bin/py-spy", (Thread(2**63, "T", frames, 70, True, True), Thread(2, None, ())), ("slow",)), "d1", "proc/1", 5)


def test_dump_has_rows_in_its_four_tables() -> None:
    rows = dump()
    assert [*rows] == [table.name for table in TABLES]
    for table in TABLES:
        assert rows[table.name].schema.equals(table.schema(), check_metadata=True)
        rows[table.name].validate(full=True)
    assert [*rows["pyspy_dumps"].to_pylist()[0].values()] == ["d1", 5, 7, "/bin/py-spy", "proc/1", "py-spy", '["slow"]']
    assert [[*row.values()] for row in rows["pyspy_stack_traces"].to_pylist()] == [
        ["d1", 7, 2**63, "T", 70, True, True],
        ["d1", 7, 2, None, None, False, False],
    ]
    assert [*rows["pyspy_frames"].to_pylist()[1].values()] == ["d1", 2**63, 1, "_start", "", "/lib/libc.so.6", None, 0, False]
    assert [[*row.values()][3:] for row in rows["pyspy_local_variables"].to_pylist()] == [
        ["x", 2**64 - 1, True, "1"],
        ["y", 0, False, None],
    ]


def test_dump_answers_the_examples_of_its_tables() -> None:
    engine = OneHost({name: [batch] for name, batch in dump().items()})
    found = {table.name: engine.ask(table.example).table.to_pylist() for table in TABLES}
    assert found["pyspy_stack_traces"] == [{"proc_ref": "proc/1", "thread_name": "T"}]
    assert found["pyspy_local_variables"] == [{"function": "f", "name": "x", "repr": "1"}]
