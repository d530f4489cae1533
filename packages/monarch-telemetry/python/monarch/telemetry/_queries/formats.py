"""Answers as text for people (`table`) and for programs (`json`, `jsonl`, `csv`, `arrow`).

All but `arrow` are UTF-8. `table` and the JSON formats have no character in them that a terminal acts upon; `csv` has the values as they
are, unless it is written to a terminal.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO, Literal

from monarch.telemetry._arrow import pa
from monarch.telemetry._queries import values

Format = Literal["table", "json", "jsonl", "csv", "arrow"]
# The most rows for a person; --format gives the rest.
TABLE_ROWS = 1000
# The most columns of the terminal for a value.
TABLE_WIDTH = 100
_CUT = "…"


def write(answer: Any, form: Format, out: BinaryIO, *, terminal: bool = False) -> None:
    """Writes a `pyarrow.Table`. `terminal` is whether `out` is one; `OSError` of `out` passes."""
    if form == "arrow":
        with pa.ipc.new_stream(pa.PythonFile(out, mode="w"), answer.schema) as stream:
            stream.write_table(answer)
        return
    lines = {"table": text_table, "json": json_text, "jsonl": json_lines, "csv": csv}[form](answer)
    for line in lines:
        if terminal and form == "csv":
            line = "\n".join(values.printable(part) for part in line.split("\n"))
        out.write(line.encode("utf-8", "backslashreplace"))


def text_table(answer: Any, *, rows: int = TABLE_ROWS, width: int = TABLE_WIDTH) -> Iterator[str]:
    """An aligned table: a line of names, one of dashes, a line a row.

    Values wider than `width` end with `…`. The last line has the number of rows beyond `rows`.
    """
    names = values.names(answer)
    if not names:
        yield "(no columns)\n"
        return
    is_number = [_is_number(field.type) for field in answer.schema]
    shown = [[_cut(values.printable(name), width) for name in names]]
    for row in values.rows(answer, 0, rows):
        shown.append([_cut(cell(name, value), width) for name, value in zip(names, row, strict=True)])
    widths = [max(map(text_width, column)) for column in zip(*shown, strict=True)]
    yield _line(shown[0], widths, is_number)
    yield "  ".join("-" * one for one in widths) + "\n"
    for row in shown[1:]:
        yield _line(row, widths, is_number)
    if answer.num_rows > rows:
        yield f"{_CUT} {answer.num_rows - rows:,} more row{'s' if answer.num_rows - rows > 1 else ''}\n"


def cell(name: str, value: Any) -> str:
    """A value of a column of this name as people read it: a time has its ISO form behind it."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return values.printable(value)
    if isinstance(value, list | dict):
        return values.json_printable(_dumped(value))
    return f"{value} {values.iso(value)}" if values.is_time(name, value) else str(value)


def json_text(answer: Any) -> Iterator[str]:
    """One JSON list of objects, one a line."""
    before = "[\n"
    for line in _objects(answer):
        yield f"{before}{line}"
        before = ",\n"
    yield "[]\n" if before == "[\n" else "\n]\n"


def json_lines(answer: Any) -> Iterator[str]:
    """A JSON object a line."""
    for line in _objects(answer):
        yield f"{line}\n"


def csv(answer: Any) -> Iterator[str]:
    """Lines of values between commas, the names first. NULL is nothing at all, an empty text has its quotes."""
    yield ",".join(map(_quoted, values.names(answer))) + "\n"
    for row in values.rows(answer):
        yield ",".join(map(_field, row)) + "\n"


def text_width(text: str) -> int:
    """The columns that a terminal uses for a text without control characters."""
    return len(text) if text.isascii() else sum(map(_character_width, text))


def _character_width(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in {"Mn", "Me"}:
        return 0
    return 2 if unicodedata.east_asian_width(character) in {"W", "F"} else 1


def _cut(text: str, width: int) -> str:
    # No character is wider than two, and a mark of zero width follows another character: the loop ends early for long texts.
    if len(text) <= width and text_width(text) <= width:
        return text
    kept, used = 0, 0
    for character in text:
        used += _character_width(character)
        if used > width - 1:
            break
        kept += 1
    return text[:kept] + _CUT if kept < len(text) else text


def _line(row: Iterable[str], widths: list[int], is_number: list[bool]) -> str:
    filled: list[str] = []
    for text, width, number in zip(row, widths, is_number, strict=True):
        space = " " * (width - text_width(text))
        filled.append(space + text if number else text + space)
    return "  ".join(filled).rstrip() + "\n"


def _is_number(kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _objects(answer: Any) -> Iterator[str]:
    names = values.names(answer)
    for row in values.rows(answer):
        yield values.json_printable(_dumped(dict(zip(names, row, strict=True))))


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _field(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _quoted(value)
    return _quoted(_dumped(value)) if isinstance(value, list | dict) else str(value)


def _quoted(text: str) -> str:
    if text and not any(mark in text for mark in ',"\r\n') and text.strip() == text:
        return text
    return '"' + text.replace('"', '""') + '"'
