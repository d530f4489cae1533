"""`monarch rdma`: which paths there are."""

from __future__ import annotations

import json

import click

from monarch.rdma._probe import DeviceReport, locked_memory, probe


@click.group()
def command() -> None:
    """Looks at paths between the memories of processes."""


@command.command("probe")
@click.option("--json", "as_json", is_flag=True, help="As a list of objects.")
def probe_command(as_json: bool) -> None:
    """Prints each path and device of this machine, best first, and what is in the way of those that are not usable."""
    rows = probe()
    if as_json:
        click.echo(json.dumps([row._asdict() for row in rows], indent=2))
        return
    width = max(len(row.name) for row in rows)
    for row in rows:
        click.echo(f"{row.name:<{width}}  {_text(row)}".rstrip())
    click.echo(f"locked memory: {locked_memory()}")


def _text(row: DeviceReport) -> str:
    rails = f", {row.rails} rails" if row.rails else ""
    node = "" if row.numa is None else f", NUMA node {row.numa}"
    state = "usable" if row.usable else "not usable"
    return f"{state}{rails}{node}" + (f": {row.reason}" if row.reason else "")
