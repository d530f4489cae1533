"""`monarch ps`: hosts, procs, actors, and what runs in them since when."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

import click

from monarch._core.cli import reach
from monarch._core.cli.printable import printable, show_lines
from monarch._core.observe import inspection


def report(pids: tuple[int, ...], as_json: bool, everything: bool = False, here: bool = False, without: tuple[str, ...] = ()) -> int:
    """Prints all jobs with their hosts, then the agents that serve none of these, or only the jobs of `pids`. Gives the exit code.

    With `everything` the list includes lost hosts and agents that a job already lists. Then follow the other machines of the current job,
    unless `pids` or `here` is given. Agents whose numbers are in `without` are left out.
    """
    found = [one for one in wanted(inspection.look(inspection.STATE), pids) if f"{one.agent:016x}" not in without]
    every = [part for one in found for part in inspection.parts(one)]
    code = 1 if any(answer is None or any(p["silent"] for p in answer["procs"]) for answer in every) else 0
    if not as_json:
        sections = [_section(one, everything) for one in inspection.without_listed_agents(found, bool(pids) or everything)]
        if found or not without:
            show_lines(separated(sections) if sections else ["no job of this user runs on this machine"])
    there = [] if here or pids else reach.elsewhere("ps", *reach.without(found), as_json=as_json, everything=everything)
    if as_json:
        import json

        click.echo(json.dumps([one._asdict() for one in found] + reach.rows(there), indent=2))
        return max(code, reach.code(there))
    return max(code, reach.show(there))


def separated(sections: Iterable[list[str]]) -> Iterator[str]:
    """The lines of the sections, with an empty line between two sections."""
    for index, section in enumerate(sections):
        if index:
            yield ""
        yield from section


def _section(one: inspection.Look, everything: bool) -> list[str]:
    """The lines of a job with its hosts, or of an agent."""
    if one.answer is None:
        return [one.describe()]
    lines = [heading(one.answer), *_lines(one.answer)]
    if inspection.is_agent(one.answer):
        lines += [f"  works for {client}" for client in one.answer.get("clients", [])]
    for other in listed_hosts(one.answer, everything):
        lines.append("  " + host_heading(other))
        if other.answer is not None:
            lines += ["  " + line for line in _lines(other.answer)]
    return lines


def listed_hosts(answer: dict[str, Any], everything: bool) -> list[inspection.OtherHost]:
    """The other hosts of a job. Lost hosts are listed only with `everything`."""
    return [other for other in inspection.others(answer) if everything or other.state != "lost"]


def wanted(found: list[inspection.Look], pids: tuple[int, ...]) -> list[inspection.Look]:
    """The jobs whose clients have these pids; `UsageError` for a pid without a job."""
    known = {one.pid for one in found if one.pid is not None}
    for pid in pids:
        if pid not in known:
            jobs = ", ".join(map(str, sorted(known))) or "none"
            raise click.UsageError(f"process {pid} is not the client of a job of this user on this machine (there is: {jobs})")
    return [one for one in found if not pids or one.pid in pids]


def heading(answer: dict[str, Any]) -> str:
    kind = "agent" if inspection.is_agent(answer) else "job"
    return f"{kind} {answer['agent_pid']} on {answer['host']}: {inspection.command_of(answer['agent_pid'])}"


def host_heading(one: inspection.OtherHost) -> str:
    """The heading of another host of a job."""
    name = f"host {one.host}" if one.host else "a host"
    return f"{name}: {one.error}" if one.answer is None else f"{name}, worker {one.answer['agent_pid']}"


def _lines(answer: dict[str, Any]) -> list[str]:
    rows = [("PID", "STATE", "UP", "RSS", "QUEUED", "DOING", "PROC / ACTOR")]
    notes: list[str] = []
    for proc in answer["procs"]:
        rss = f"{proc['rss'] / 2**20:.0f} MiB" if proc["rss"] else "-"
        rows.append((str(proc["pid"] or "-"), proc["state"], duration(proc["age"]), rss, "", "", proc["name"]))
        if proc["silent"]:
            notes.append(f"  {proc['name']} (pid {proc['pid']}) is unresponsive for {duration(proc['silent'])}: {proc['evidence']}")
        for actor in inspection.actors_of(proc):
            doing = f"{actor['doing']} {duration(actor['doing_for'])}" if actor["doing"] else "-"
            if actor.get("overdue") is not None:
                doing += f", overdue {duration(actor['overdue'])}"
            rows.append(("", "", "", "", str(actor["queued"]), doing, "  " + actor["display"]))
    for one in answer.get("preloaded", []):
        about = one["description"]
        rss = f"{one['rss'] / 2**20:.0f} MiB" if one["rss"] else "-"
        rows.append((str(one["pid"]), about["state"], "", rss, "", "", f"preload {', '.join(about['modules'])}"))
    # The captured files are below the directory of a job on a host: MESH/RANK.
    folders = {os.path.dirname(os.path.dirname(proc["captured_in"])) for proc in answer["procs"] if proc.get("captured_in")}
    notes += [f"  output of procs is captured in {folder}, as MESH/RANK.stdout and MESH/RANK.stderr" for folder in sorted(folders)]
    notes += [f"  service {note}" for note in answer.get("notes", [])]
    rows = [tuple(map(printable, row)) for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    table = ["  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]) for row in rows]
    return [*table, *notes]


def duration(seconds: float) -> str:
    """A duration with two figures and a unit."""
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{rest:02}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours < 48 else f"{hours // 24}d{hours % 24:02}h"
