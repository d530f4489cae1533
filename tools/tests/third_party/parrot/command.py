"""A verb of the `monarch` command, and a line of `monarch doctor`."""

from __future__ import annotations

from collections.abc import Iterator

import click


@click.command()
@click.argument("word")
def command(word: str) -> None:
    """Says a word twice."""
    click.echo(f"{word} {word}")


def lines() -> Iterator[tuple[str, str, str]]:
    yield ("parrot", "can speak", "")
