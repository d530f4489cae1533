"""The glossary stays short: at most 100 entries in alphabetical order, each of one or two sentences, with the page that explains it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tools.style.problem import Problem

GLOSSARY = Path("docs/glossary.md")
ENTRIES, SENTENCES = 100, 2
_STOP = re.compile(r"[.!?](?=\s|$)")


def entries(text: str) -> Iterator[tuple[int, list[str]]]:
    """The line and the cells of each entry."""
    rows = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.startswith("|")]
    for number, line in rows[2:]:
        yield number, [cell.strip() for cell in line.strip("|").split("|")]


def rows(path: Path, text: str) -> Iterator[Problem]:
    """Problems of the entries, if the page is the glossary."""
    before = ""
    for count, (number, cells) in enumerate(entries(text) if path == GLOSSARY else (), 1):
        term, definition, page = (*cells, "", "", "")[:3]
        if count > ENTRIES:
            yield Problem(path, number, "long-glossary", f"entry {count} of at most {ENTRIES}")
        if term.casefold() <= before:
            yield Problem(path, number, "glossary-order", f"'{term}' belongs before '{before}'")
        if not 1 <= len(_STOP.findall(definition)) <= SENTENCES:
            yield Problem(path, number, "glossary-definition", f"'{term}' is defined in one sentence, or in {SENTENCES}")
        if "](" not in page:
            yield Problem(path, number, "glossary-page", f"'{term}' has no link to the page that explains it")
        before = term.casefold()
