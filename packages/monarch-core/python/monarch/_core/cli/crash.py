"""`monarch doctor --crash`: the last events of processes that were killed or failed, from their flight recorders.

The agent of a host has the recorders of its running and ended processes. The recorders are memory without a name, so they end with the
agent, in whatever way the agent ends. If no recorder is left, the report gives the reason.
"""

from __future__ import annotations

import os
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from monarch._core.cli.printable import show_lines
from monarch._core.cli.ps import heading, separated
from monarch._core.observe import inspection

if TYPE_CHECKING:
    from monarch._core._native.events import Event

# The number of events that a failure carries.
LAST = 32
# Kinds of ends that are no failures.
_ORDERLY = ("returned", "stopped")


class Crash(NamedTuple):
    """A process that has failed, and its last events, or the reason why there are none."""

    name: str
    pid: int
    why: str
    events: list[Event]
    written: int
    error: str | None


def report(pids: tuple[int, ...], as_json: bool) -> int:
    """Prints the crashes of all jobs, or of those whose client is one of `pids`; gives the exit code."""
    looks = inspection.look(inspection.STATE)
    asked = [one for one in looks if not pids or one.pid in pids]
    found = [(one, crashes(one.answer)) for one in asked if one.answer is not None]
    silent = [one.describe() for one in asked if one.answer is None]
    nothing = [_absence(pid) for pid in pids if not any(one.pid == pid for one in asked)]
    if not looks and not pids:
        nothing.append("no job of this user runs on this machine: flight recorders end with their client, or with the agent of a host")
    if as_json:
        import json

        rows = [_as_json(one.answer or {}, crash) for one, all_ in found for crash in all_]
        click.echo(json.dumps(rows, indent=2))
    else:
        sections = [_section(one.answer or {}, all_) for one, all_ in found]
        show_lines(separated([*sections, *([line] for line in [*silent, *nothing])]))
    return 0 if any(all_ for _, all_ in found) and not nothing and not (pids and silent) else 1


def _absence(pid: int) -> str:
    if os.path.exists(f"/proc/{pid}"):
        return f"process {pid} is not the client of a job of this user, nor the agent of a host"
    return f"process {pid} has ended, and the recorders that it kept with it: those of its job's processes on this machine, and its own"


def crashes(answer: dict[str, Any]) -> list[Crash]:
    """The recorded processes of an agent that have failed, in the order of their ends."""
    failed = (row for row in answer.get("recordings", []) if row["ended"] and row["kind"] not in _ORDERLY)
    return [_crash(row) for row in failed]


def _crash(row: dict[str, Any]) -> Crash:
    from monarch._core._native.events import Ring

    name, pid, why = row["name"], row["pid"], _cause(row)
    try:
        ring = Ring(row["file"])
        if ring.proc != int(row["proc"], 16):
            raise OSError("more recent processes have ended since")
    except OSError as e:
        return Crash(name, pid, why, [], 0, str(e))
    ring.skip_to_last(LAST)
    return Crash(name, pid, why, ring.drain(LAST, True).events(), ring.written, None)


def _cause(row: dict[str, Any]) -> str:
    number, detail = row["number"], row["detail"]
    known = {
        "exit_code": f"ended with exit code {number}",
        "signal": f"was killed by signal {number}{_signal_name(number)}",
        "oom": f"was killed because the memory cgroup {detail} was full",
        "not_started": f"did not start: {detail}",
    }
    return known.get(row["kind"]) or f"failed: {row['kind']} {detail}"


def _signal_name(number: int) -> str:
    import signal

    try:
        return f" ({signal.Signals(number).name})"
    except ValueError:  # a real-time signal
        return ""


def _section(answer: dict[str, Any], found: list[Crash]) -> list[str]:
    lines = [heading(answer)]
    for crash in found:
        last = f"its last {len(crash.events)} of {crash.written} events"
        if crash.error is not None:
            last = f"its events cannot be read: {crash.error}"
        lines.append(f"  {crash.name} (pid {crash.pid}) {crash.why}; {last}")
        lines += [f"    {_line(event)}" for event in crash.events]
    lost = [other for other in inspection.others(answer) if other.state == "lost"]
    lines += [f"  the host {other.host} is lost, and the recorders of its processes with it: {other.error}" for other in lost]
    return lines if found or lost else [*lines, f"  {_nothing(answer)}"]


def _nothing(answer: dict[str, Any]) -> str:
    """The reason why a running job has no crash."""
    rows = answer.get("recordings")
    if rows is None:
        return f"it runs version {answer['version']}, which keeps no recorders"
    if not rows:
        return "its processes record nothing: set `flight_recorder` (MONARCH_FLIGHT_RECORDER=1) before it starts"
    ended = sum(1 for row in rows if row["ended"])
    return f"no process that recorded has failed: {len(rows) - ended} run, {ended} of those that were stopped are kept (16 at most)"


def _line(event: Event) -> str:
    """One event as a line: time, thread and text."""
    when = datetime.fromtimestamp(event.time / 1e9).astimezone().isoformat(timespec="microseconds")
    fields = " ".join(f"{name}={'(overwritten)' if value is None else value}" for name, value in event.fields.items())
    return f"{when} thread {event.thread} {event.name} {fields}"


def _as_json(answer: dict[str, Any], crash: Crash) -> dict[str, Any]:
    events = [
        {"number": one.number, "time": one.time, "thread": one.thread, "name": one.name, "fields": one.fields} for one in crash.events
    ]
    return {"agent_pid": answer["agent_pid"], "host": answer["host"], **crash._asdict(), "events": events}
