"""`monarch ps`: hosts, procs, actors, what runs and since when."""

from __future__ import annotations

from typing import Any

import click

from monarch._core import inspection


def report(pids: tuple[int, ...], as_json: bool) -> int:
    """Prints all jobs, or those whose client is one of `pids`; gives the exit code."""
    found = wanted(inspection.look(inspection.STATE), pids)
    if as_json:
        import json

        click.echo(json.dumps([one._asdict() for one in found], indent=2))
    elif not found:
        click.echo("no job of this user runs on this machine")
    for index, one in enumerate([] if as_json else found):
        if index:
            click.echo()
        if one.answer is None:
            click.echo(f"a job that cannot be looked into: {one.error}")
        else:
            click.echo(heading(one.answer))
            for line in _lines(one.answer):
                click.echo(line)
            for other in inspection.others(one.answer):
                click.echo()
                click.echo(host_heading(other))
                for line in _lines(other.answer) if other.answer is not None else []:
                    click.echo(line)
    every = [part for one in found for part in inspection.parts(one)]
    return 1 if any(answer is None or any(p["silent"] for p in answer["procs"]) for answer in every) else 0


def wanted(found: list[inspection.Look], pids: tuple[int, ...]) -> list[inspection.Look]:
    """The jobs that are asked for by the pid of their client; `UsageError` for one that is not there."""
    known = {one.answer["agent_pid"] for one in found if one.answer is not None}
    for pid in pids:
        if pid not in known:
            jobs = ", ".join(map(str, sorted(known))) or "none"
            raise click.UsageError(f"process {pid} is not the client of a job of this user on this machine (there is: {jobs})")
    return [one for one in found if not pids or (one.answer is not None and one.answer["agent_pid"] in pids)]


def heading(answer: dict[str, Any]) -> str:
    return f"job {answer['agent_pid']} on {answer['host']}: {inspection.command_of(answer['agent_pid'])}"


def host_heading(one: inspection.OtherHost) -> str:
    """Another host of a job."""
    name = one.host or "a host"
    return f"host {name}: {one.error}" if one.answer is None else f"host {name}, worker {one.answer['agent_pid']}"


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
            rows.append(("", "", "", "", str(actor["queued"]), doing, "  " + actor["display"]))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    table = ["  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]) for row in rows]
    return [*table, *notes]


def duration(seconds: float) -> str:
    """Two figures and their unit are enough to see what hangs."""
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{rest:02}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours < 48 else f"{hours // 24}d{hours % 24:02}h"
