"""A verb of the `monarch` command, a line of `monarch doctor`, and the output of another machine for core's verbs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import click

from monarch.extension.cli import Elsewhere


@click.command()
@click.argument("word")
def command(word: str) -> None:
    """Prints a word twice."""
    click.echo(f"{word} {word}")


def lines() -> Iterator[tuple[str, str, str]]:
    yield ("parrot", "can speak", "")


def elsewhere(arguments: Sequence[str]) -> list[Elsewhere]:
    """Runs nothing: a cage has no machine."""
    said = json.dumps([{"words": " ".join(arguments)}])
    return [Elsewhere("cage[0]", 0, said), Elsewhere("cage[1]", 1, "", "cage[1]: it is locked")]
