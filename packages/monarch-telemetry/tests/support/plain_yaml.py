"""A reader of plain YAML: blocks of mappings and sequences, scalars of one line. Other parts of YAML are refused: nothing is guessed."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

# A key, which may be quoted, and the text after it.
_PAIR = re.compile(r"(?P<key>[A-Za-z0-9_./$-]+|\"[^\"]*\"):(?: +(?P<value>.+))?")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?")
# Words that other readers interpret as a truth value.
_DOUBTFUL = re.compile(r"(?:yes|no|on|off|y|n|~|null|true|false|nan|inf)", re.IGNORECASE)
_SPECIAL = (*"!&*|>@`%?[]{},#'\": ", "- ")


class Line(NamedTuple):
    number: int
    indent: int
    text: str


def documents(text: str) -> list[Any]:
    """The documents of a file. `ValueError` with the number of the line for what is not plain."""
    found: list[list[Line]] = [[]]
    for number, line in enumerate(text.splitlines(), 1):
        if line == "---":
            found.append([])
        elif line.strip() and not line.lstrip().startswith("#"):
            if "\t" in line or line != line.rstrip():
                raise ValueError(f"line {number}: a tab, or a space at the end")
            found[-1].append(Line(number, len(line) - len(line.lstrip()), line.lstrip()))
    return [_block(lines, lines[0].indent) for lines in found if lines]


def _block(lines: list[Line], indent: int) -> Any:
    """What the lines of this indent at the front make; they are taken away."""
    if lines[0].indent != indent:
        raise ValueError(f"line {lines[0].number}: indented by {lines[0].indent} in place of {indent}")
    return _sequence(lines, indent) if lines[0].text.startswith("- ") else _mapping(lines, indent)


def _sequence(lines: list[Line], indent: int) -> list[Any]:
    found: list[Any] = []
    while lines and lines[0].indent == indent and lines[0].text.startswith("- "):
        number, _, text = lines.pop(0)
        inner = text[2:]
        if _PAIR.fullmatch(inner):
            lines.insert(0, Line(number, indent + 2, inner))
            found.append(_mapping(lines, indent + 2))
        else:
            found.append(_scalar(inner, number))
    return _ended(lines, indent, found)


def _mapping(lines: list[Line], indent: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    while lines and lines[0].indent == indent and not lines[0].text.startswith("- "):
        number, _, text = lines.pop(0)
        pair = _PAIR.fullmatch(text)
        if pair is None:
            raise ValueError(f"line {number}: no key with a value: {text!r}")
        key, value = pair["key"].strip('"'), pair["value"]
        if key in found:
            raise ValueError(f"line {number}: {key!r} for the second time")
        if value is not None:
            found[key] = _scalar(value, number)
        elif lines and lines[0].indent > indent:
            found[key] = _block(lines, lines[0].indent)
        else:
            raise ValueError(f"line {number}: {key!r} has no value")
    return _ended(lines, indent, found)


def _ended(lines: list[Line], indent: int, found: Any) -> Any:
    if lines and lines[0].indent >= indent:
        raise ValueError(f"line {lines[0].number}: neither a part of what stands before it nor behind it")
    return found


def _scalar(text: str, number: int) -> Any:
    if text in ("true", "false", "{}", "[]") or _NUMBER.fullmatch(text):
        return json.loads(text)
    if text.startswith('"'):
        try:
            found = json.loads(text)
        except ValueError:
            raise ValueError(f"line {number}: {text!r} is no text in double quotes") from None
        return found
    if text.startswith(_SPECIAL) or ": " in text or " #" in text or text.endswith(":") or _DOUBTFUL.fullmatch(text):
        raise ValueError(f"line {number}: {text!r} needs double quotes")
    return text
