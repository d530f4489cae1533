"""A timeline as a trace for the viewers of Chrome and Perfetto, and as tables."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from monarch.tensor._protocol.commands import Reduce
from monarch.tensor._protocol.frames import frames_of
from monarch.tensor.simulator.costs import flops_of
from monarch.tensor.simulator.timeline import described_collective
from monarch.tensor.simulator.work import described

if TYPE_CHECKING:
    from collections.abc import Iterable

    from monarch.tensor._protocol.frames import Site
    from monarch.tensor.simulator.timeline import Span, Timeline, Totals


def trace_text(timeline: Timeline, everything: bool, grouped: bool) -> str:
    """The trace as JSON, an event a line. The same program gives the same text.

    The processes are ranks, or groups of ranks if `grouped`; the threads are streams. `everything` adds what takes no time, what a stream
    waits for, operands, lines of the program, and memory.
    """
    events: list[dict[str, Any]] = []
    processes = list(_processes(timeline, grouped))
    of_group: dict[int, list[Span]] = {}
    for span in timeline.spans:
        of_group.setdefault(span.group, []).append(span)
    for process, group, name in processes:
        events.append({"ph": "M", "pid": process, "name": "process_name", "args": {"name": name}})
        used = sorted({span.stream for span in of_group.get(group, ())})
        for stream in used:
            events.append({"ph": "M", "pid": process, "tid": stream, "name": "thread_name", "args": {"name": timeline.streams[stream]}})
    for process, group, _ in processes:
        for span in of_group.get(group, ()):
            if everything or (span.work is not None and span.end > span.start):
                events.append(_event(timeline, span, process, everything))
        if everything:
            for time, size in timeline.memory[group]:
                events.append({"ph": "C", "pid": process, "name": "memory", "ts": _us(time), "args": {"bytes": size}})
    lines = ",\n".join(json.dumps(event, sort_keys=True) for event in events)
    return f'{{"displayTimeUnit": "ns", "traceEvents": [\n{lines}\n]}}\n'


def _processes(timeline: Timeline, grouped: bool) -> Iterable[tuple[int, int, str]]:
    if grouped:
        for group, members in enumerate(timeline.members):
            yield group, group, named_ranks(members)
    else:
        for rank, group in enumerate(timeline.partition.of_rank):
            yield rank, group, f"rank {rank}"


def _event(timeline: Timeline, span: Span, process: int, everything: bool) -> dict[str, Any]:
    work = span.work
    event: dict[str, Any] = {"ph": "X", "pid": process, "tid": span.stream, "ts": _us(span.start), "dur": _us(span.end - span.start)}
    if work is None:
        return {**event, "name": "wait", "cat": "wait"}
    name = f"reduce {described_collective(work.definition)}" if isinstance(work.definition, Reduce) else work.name
    event |= {"name": name, "cat": work.kind}
    if everything:
        event["args"] = {
            "inputs": [described(x) for x in work.inputs],
            "outputs": [described(x) for x in work.outputs],
            "bytes": work.bytes_moved,
            "flops": flops_of(work),
            "line": line_of(timeline.log[span.entry].site),
        }
    meta = timeline.log[span.entry].meta
    if meta is not None:
        event["args"] = event.get("args", {}) | {"meta": shown_meta(meta)}
    return event


def shown_meta(value: Any) -> Any:
    """A value of `set_meta` in JSON: itself, or its text."""
    return value if isinstance(value, str | int | float) else str(value)


def line_of(site: Site) -> str:
    """The line of the program that issued a command, by the name of its file."""
    frames = frames_of(site)
    return f"{frames[0].file.rpartition('/')[2]}:{frames[0].line}" if frames else ""


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)


def named_ranks(ranks: list[int]) -> str:
    """`rank 3`, `ranks 0-7, 16-23`; the rest is counted."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    shown = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs[:4])
    rest = sum(b - a + 1 for a, b in runs[4:])
    return f"ranks {shown}" + (f" and {rest} more" if rest else "")


# Tables

_ROWS = 20


def report(timeline: Timeline) -> str:
    """The tables that `Simulator.display` prints."""
    total = timeline.seconds
    ranks = len(timeline.partition.of_rank)
    count = len(timeline.members)
    parts = [f"{ranks} ranks in {count} group{'s' if count > 1 else ''} of equal times: {_duration(total)}"]
    rows: list[list[str]] = []
    for group, stream in sorted(timeline.end):
        busy = timeline.busy[group, stream]
        part = f"{100 * busy / total:.0f} %" if total else "-"
        rows.append([named_ranks(timeline.members[group]), timeline.streams[stream], _duration(busy), part])
    parts.append(_table(["ranks", "stream", "busy", "of all"], rows))
    parts.append(_table(["operator", "commands", "seconds", "bytes"], _totals(timeline.operators)))
    if timeline.collectives:
        parts.append(_table(["collective", "commands", "seconds", "bytes"], _totals(timeline.collectives)))
    peaks = [[named_ranks(m), f"{timeline.peak[g]:,}"] for g, m in enumerate(timeline.members)]
    parts.append(_table(["ranks", "greatest memory in bytes"], peaks))
    return "\n\n".join(parts)


def _totals(table: dict[str, Totals]) -> list[list[str]]:
    ordered = sorted(table.items(), key=lambda item: (-item[1].seconds, item[0]))
    return [[name, str(t.commands), _duration(t.seconds), f"{t.bytes:,}"] for name, t in ordered]


def _duration(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.3f} s"
    return f"{seconds * 1e3:.3f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3f} us"


def _table(head: list[str], rows: list[list[str]]) -> str:
    more = len(rows) - _ROWS
    shown = rows[:_ROWS]
    widths = [max(len(row[i]) for row in [head, *shown]) for i in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in [head, *shown]]
    return "\n".join([*lines, *([f"and {more} more"] if more > 0 else [])])
