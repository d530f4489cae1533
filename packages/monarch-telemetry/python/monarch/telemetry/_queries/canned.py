"""A canned question: a file with a header of comments, and a statement below it.

    -- name: idle_hosts
    -- what: Hosts on which no proc runs.
    -- column host: the name of the host
    -- read: A host without procs costs money.
    SELECT name AS host FROM hosts WHERE ...

A line that begins with `--` and at least two spaces continues the line before. The header ends with the first line that is no comment; the
statement that is run is what follows, so that a place in an error of the statement counts from there.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_ENTRY = re.compile(r"-- ?(name|what|read|column [^:]+): *(.*)")
_MORE = re.compile(r"--  +(.*)")
# A statement has at most 16 KiB; the header has less.
LONGEST_FILE = 32 << 10


class NotCanned(ValueError):
    """A text that is no canned question; the text of the error has the reason."""


class Meaning(NamedTuple):
    """One column of the answer, or several that belong together: their names as the header has them, and what they are."""

    columns: str
    meaning: str


class Canned(NamedTuple):
    """A question with a name. `what` is one sentence, `read` how the answer is used, `source` the file where it is a user's."""

    name: str
    what: str
    columns: tuple[Meaning, ...]
    read: str
    sql: str
    source: str = ""

    def help(self) -> str:
        """Name, sentence, columns and how to read the answer, as lines of text."""
        columns = [f"  {one.columns}: {one.meaning}" for one in self.columns]
        return "\n".join([f"{self.name}: {self.what}", *columns, *([f"  {self.read}"] if self.read else [])]) + "\n"


def parse(text: str, *, name: str | None = None, source: str = "") -> Canned:
    """Reads the text of a file. `NotCanned` with the line that is wrong; `name` is the name that the header must have."""
    entries, sql = _header(text.removeprefix("\ufeff"))
    fields = {key: value for key, value in entries if not key.startswith("column ")}
    for key in ("name", "what"):
        if not fields.get(key):
            raise NotCanned(f"the header has no line `-- {key}: ...`")
    if not _NAME.fullmatch(fields["name"]):
        raise NotCanned(f"the name {fields['name']!r} is none: lowercase letters, digits and _ are allowed, the first is a letter")
    if name is not None and fields["name"] != name:
        raise NotCanned(f"the name in the header is {fields['name']!r}, and the file is named {name!r}")
    if not sql.strip():
        raise NotCanned("there is no statement below the header")
    columns = tuple(Meaning(key.removeprefix("column ").strip(), value) for key, value in entries if key.startswith("column "))
    return Canned(fields["name"], fields["what"], columns, fields.get("read", ""), sql, source)


def _header(text: str) -> tuple[list[tuple[str, str]], str]:
    """The entries of the header in their order, and the rest."""
    entries: list[tuple[str, str]] = []
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines):
        plain = line.rstrip()
        if plain and not plain.startswith("--"):
            return entries, "".join(lines[number:])
        if found := _ENTRY.fullmatch(plain):
            if not found[1].startswith("column ") and any(key == found[1] for key, _ in entries):
                raise NotCanned(f"line {number + 1}: a second `{found[1]}`")
            entries.append((found[1], found[2]))
        elif (more := _MORE.fullmatch(plain)) and entries:
            key, value = entries[-1]
            entries[-1] = (key, f"{value} {more[1]}".strip())
        elif plain.strip("-").strip():
            raise NotCanned(f"line {number + 1}: neither name, what, column nor read: {plain[:80]!r}")
    return entries, ""
