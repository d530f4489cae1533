"""`monarch context create|use|rm|ls|export|import`."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import click

from monarch.job._cli.verb import guarded, loaded

if TYPE_CHECKING:
    from collections.abc import Callable


@click.group("context", short_help="Several jobs of one directory, one of them current.")
def command() -> None:
    """Each context has a job of its own; verbs and scripts use the one that is active."""


def _sub(name: str) -> Callable[[Callable[..., int | None]], click.Command]:
    return lambda function: command.command(name)(guarded(function))


@_sub("create")
@click.argument("name")
def create(name: str) -> int:
    """Makes a context; the active one stays. `use` makes one and switches to it."""
    from monarch.job._files import contexts

    contexts.create(name)
    return 0


@_sub("use")
@click.argument("name")
def use(name: str) -> int:
    """Switches to a context, which is made if it is new. A job without a context gets the name `default`."""
    from monarch.job._files import contexts

    contexts.check_name(name)
    if name not in contexts.names():
        contexts.create(name)
    contexts.use(name)
    return 0


@_sub("ls")
@click.option("--json", "as_json", is_flag=True, help="As a list of objects.")
def ls(as_json: bool) -> int:
    """Lists the contexts of this directory; the active one has a star."""
    from monarch.job._files import contexts

    active = contexts.active()
    rows = [{"name": name, "active": name == active, "job": os.path.exists(contexts.state_path(name))} for name in contexts.names()]
    if as_json:
        click.echo(json.dumps(rows))
        return 0
    if not rows:
        click.echo("No contexts.")
    for row in rows:
        click.echo(f"{'*' if row['active'] else ' '} {row['name']}{'' if row['job'] else '  (no job)'}")
    return 0


@_sub("rm")
@click.argument("name")
def rm(name: str) -> int:
    """Kills the context's job and removes the context, if killing worked."""
    from monarch.job._files import contexts

    if name not in contexts.names():
        raise contexts.unknown(name)
    job = loaded(contexts.state_path(name), name)
    if job is not None:
        job.kill()
    contexts.remove(name)
    return 0


@_sub("export")
@click.argument("name", required=False)
@click.option("-o", "--output", required=True, type=click.Path(dir_okay=False), help="The file to make.")
@click.option("--passphrase-file", type=click.Path(dir_okay=False), help="Its first line; asked for otherwise.")
def export(name: str | None, output: str, passphrase_file: str | None) -> int:
    """Writes a context with its credentials, encrypted, so that another machine can use the job."""
    from monarch.job._files import contexts, credentials
    from monarch.job._files.export import export as exported

    name = name or contexts.active()
    if name is None or name not in contexts.names():
        raise contexts.unknown(name or "")
    sealed = exported(name, _passphrase(passphrase_file, is_new=True))
    try:
        credentials.put(output, sealed)
    except FileExistsError:
        raise click.ClickException(f"{output} exists") from None
    return 0


@_sub("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option("--name", help="Another name for the context.")
@click.option("--passphrase-file", type=click.Path(dir_okay=False), help="Its first line; asked for otherwise.")
def import_(file: str, name: str | None, passphrase_file: str | None) -> int:
    """Makes the context that was exported into FILE, and switches to it."""
    from monarch.job._files.export import restore

    with open(file, "rb") as f:
        data = f.read()
    restore(data, _passphrase(passphrase_file, is_new=False), name)
    return 0


def _passphrase(file: str | None, is_new: bool) -> str:
    from monarch.job._files import credentials

    if file is not None:
        found = credentials.read_private(file).decode().partition("\n")[0]
    else:
        found = str(click.prompt("Passphrase", hide_input=True, confirmation_prompt=is_new, err=True))
    if not found:
        raise click.UsageError("the passphrase is empty")
    return found
