"""The table of decisions in docs/adr/README.md, from the headings and the states of the records.

A record begins with `# NNNN: What was decided` and has a line `Status: ...`. A decision that a later one replaces is marked in both, and is
not edited otherwise: `(superseded by NNNN)` or `(superseded in part by NNNN)` ends the heading, and the status begins with the same words
and states the part.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tools.project import ROOT

FOLDER = ROOT / "docs/adr"
_HEADING = re.compile(r"# (?P<number>\d{4}): (?P<title>.+?)(?: \((?P<mark>superseded (?:in part )?by \d{4}(?:, \d{4})*)\))?")
_STATUS = re.compile(r"^Status: (?P<status>.+)$", re.MULTILINE)
_LINK = re.compile(r"\[(\d{4})\]\([^)]*\)")
_SUPERSEDED = re.compile(r"superseded (?:in part )?by \d{4}(?:, \d{4})*")


class Decision(NamedTuple):
    """A record: its file, its number, what was decided, and its state: accepted, or superseded by others."""

    file: str
    number: str
    title: str
    state: str


def read(file: str, text: str) -> Decision:
    """The decision of a file; `ValueError` if its heading and its status do not agree."""
    heading, status = _HEADING.fullmatch(text.partition("\n")[0]), _STATUS.search(text)
    if heading is None or status is None or heading["number"] != file[:4]:
        raise ValueError(f"docs/adr/{file}: no heading `# {file[:4]}: ...`, or no status")
    plain = _LINK.sub(r"\1", status["status"])
    found = _SUPERSEDED.match(plain)
    state = found[0] if found else re.split(r"[;,]", plain)[0]
    if (found is None and state != "accepted") or heading["mark"] != (state if found else None):
        raise ValueError(f"docs/adr/{file}: the heading has '{heading['mark'] or 'no mark'}', the status '{plain}'")
    return Decision(file, heading["number"], heading["title"], state)


def rows(decisions: Iterable[Decision]) -> str:
    """The table; the numbers of later decisions are links."""
    found = list(decisions)
    files = {one.number: one.file for one in found}

    def linked(state: str) -> str:
        return re.sub(r"\d{4}", lambda number: f"[{number[0]}]({files[number[0]]})", state)

    lines = [f"| [{one.number}]({one.file}) | {one.title} | {linked(one.state)} |\n" for one in found]
    return "".join(["| number | decision | state |\n|---|---|---|\n", *lines])


def table(folder: Path = FOLDER) -> str:
    """The table of all records."""
    return rows(read(path.name, path.read_text(encoding="utf-8")) for path in sorted(folder.glob("[0-9]*.md")))
