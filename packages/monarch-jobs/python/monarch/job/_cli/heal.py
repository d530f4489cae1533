"""`monarch heal`."""

from __future__ import annotations

import click

from monarch.job._cli.verb import FAILED, current_job, verb


@verb("heal", short_help="Brings lost hosts of the job back.")
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), help="Seconds to wait for hosts that were started again.")
@click.option("--json", "as_json", is_flag=True, help="As one object.")
def command(timeout: float | None, as_json: bool) -> int:
    """Does the least that works: starts workers again in place, else elsewhere. Exits with 1 if hosts stay missing."""
    report = current_job().heal(timeout=timeout)
    if as_json:
        import json

        click.echo(json.dumps({kind: [host._asdict() for host in hosts] for kind, hosts in report._asdict().items()}))
    else:
        for kind, hosts in report._asdict().items():
            for host in hosts:
                click.echo(f"{kind}: {host.mesh}[{host.rank}] {host.name} {host.detail}".rstrip())
        if not any(report):
            click.echo("no host is lost")
    return FAILED if report.missing else 0
