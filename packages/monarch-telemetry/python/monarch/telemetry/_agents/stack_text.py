"""Rows of the table function `stacks()` as the report that people get: equal stacks stand once, with the ranks that have them."""

from __future__ import annotations

from typing import Any, cast

from monarch.telemetry._agents.log_question import quoted
from monarch.telemetry._queries import values
from monarch.telemetry._stacks.frames import Frame, ProcStacks, Source, Thread
from monarch.telemetry._stacks.merged import StackReport
from monarch.telemetry._stacks.place import Place

_COLUMNS = "host, proc_id, pid, mesh_name, rank, source, thread_id, thread_name, owns_gil, name, filename, line"
_NOTES: dict[Source, str | None] = {"gil": None, "no_gil": "the GIL is held", "py-spy": "read from outside"}


def statement(mesh: str | None) -> str:
    """The question for the stacks of a mesh, or of all."""
    return f"SELECT {_COLUMNS} FROM stacks({'' if mesh is None else quoted(mesh)}) ORDER BY host, proc_id, pid, thread_id, frame_depth"


def report(table: Any) -> StackReport:
    """The report on the rows of `statement`."""
    procs: dict[tuple[Any, ...], dict[tuple[Any, ...], list[Frame]]] = {}
    for row in values.rows(table):
        place, thread, frame = row[:6], row[6:9], cast("tuple[str, str, int]", row[9:])
        procs.setdefault(place, {}).setdefault(thread, []).append(Frame(*frame))
    return StackReport.of(_proc(place, threads) for place, threads in procs.items())


def _proc(place: tuple[Any, ...], threads: dict[tuple[Any, ...], list[Frame]]) -> ProcStacks:
    _, proc_id, pid, mesh, rank, source = place
    shown = Place("client", None, None) if mesh is None else Place(f"<root>.<{mesh}>", mesh, rank)
    found = tuple(Thread(number, name, tuple(frames), owns_gil=gil) for (number, name, gil), frames in threads.items())
    return ProcStacks(proc_id, pid, shown, found, source, _NOTES.get(source))
