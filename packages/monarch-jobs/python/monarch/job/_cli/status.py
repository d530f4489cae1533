"""`monarch status`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from monarch.job._cli.verb import ENDED, current_job, verb

if TYPE_CHECKING:
    from monarch.job._status import JobStatus

_INTERVAL = 2.0


@verb("status", short_help="Shows the scheduler's phase, the hosts and their last words.")
@click.option("--watch", is_flag=True, help="Look again every two seconds until Ctrl-C, or until the job has ended.")
@click.option("--json", "as_json", is_flag=True, help="As one object a look.")
def command(watch: bool, as_json: bool) -> int:
    """Shows the current job. Exits with 3 if there is none, with 4 if it has ended."""
    import threading

    job = current_job()
    while True:
        status = job.status()
        _show(job._title, status, as_json)
        if status.phase in ("none", "ended"):
            return ENDED
        # An event that nobody sets: Ctrl-C ends the wait.
        if not watch or threading.Event().wait(_INTERVAL):
            return 0


def _show(title: str, status: JobStatus, as_json: bool) -> None:
    if as_json:
        import json

        click.echo(json.dumps({"job": title, **status._asdict(), "hosts": [host._asdict() for host in status.hosts]}))
        return
    # A detail may have the tail of a log: its first line is the state, the others stand below.
    detail, *tail = status.detail.splitlines() or [""]
    click.echo("\n".join([f"{title}: {status.phase}{f' ({detail})' if detail else ''}", *(f"  {line}" for line in tail)]))
    rows = [("HOST", "NAME", "PHASE", "ADDRESS", "DETAIL")]
    rows += [(f"{host.mesh}[{host.rank}]", host.name or "-", host.phase, host.address or "-", host.detail) for host in status.hosts]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row in rows if status.hosts else ():
        detail, *tail = row[-1].splitlines() or [""]
        click.echo("  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), detail]).rstrip())
        for line in tail:
            click.echo(f"    {line}")
