"""Text in a form that a terminal shows unchanged: programs choose names and command lines, which may contain any character."""

from __future__ import annotations

from collections.abc import Iterable

import click


def printable(text: str) -> str:
    """The text with an escape for each character that would move the cursor, end the line, change colours or direction, or not be seen."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def show_lines(lines: Iterable[str]) -> None:
    """Prints each text as one line."""
    for line in lines:
        click.echo(printable(line))
