"""`monarch kill [CONTEXT]`."""

from __future__ import annotations

import click

from monarch.job._cli.verb import loaded, verb


@verb("kill", short_help="Ends a job and removes its state.")
@click.argument("context", required=False)
def command(context: str | None) -> int:
    """Ends the job of the active context, or of CONTEXT. Nothing to kill is fine."""
    from monarch.job import _contexts, _store

    path = _store.active_path() if context is None else _contexts.state_path(context)
    if context is not None and context not in _contexts.names():
        raise _contexts.unknown(context)
    job = loaded(path, context)
    if job is None:
        click.echo("nothing to kill")
        return 0
    title = job._title
    job.kill()
    click.echo(f"{title}: killed")
    return 0
