"""Answers for agents: few bytes, each line complete, and what is not there stated first.

The first lines have the coverage, the rows that follow and the cursor of the next ones. Then come the names of the columns and a line a
row, with tabs between values. A NULL is `null`, a value that is cut ends with `…+` and the number of characters that are left out.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from monarch.telemetry._queries import formats, values
from monarch.telemetry._sql.coverage import Coverage

# The most bytes of an answer: what one tool call may take of the memory of an agent.
MOST_BYTES = 50_000
# The part of `MOST_BYTES` for the lines about coverage and cursor.
_HEAD = 3_000
# The most characters of a value, at first; halved until a row fits.
CELL = 300
_LEAST_CELL = 16
_MOST_MISSING = 20
_REASON = 80


class Page(NamedTuple):
    """Some rows or lines of an answer: those from `first` to before `next`."""

    lines: list[str]
    first: int
    next: int


def rows(table: Any, first: int, most: int, *, size: int = MOST_BYTES - _HEAD, newest_last: bool = False) -> Page:
    """The names and at most `most` rows from `first` on, in at most `size` bytes; at least one row where there is one.

    With `newest_last` the rows stand in the opposite order: those of a table that begins with the newest.
    """
    names = [_cut(values.printable(name), CELL) for name in values.names(table)]
    width = CELL
    while True:
        page = _rows(table, names, first, most, size, width)
        if page.next > first or first >= table.num_rows or width <= _LEAST_CELL:
            break
        width //= 2
    if page.next == first < table.num_rows:
        # Not even one row of short values has room, but the first columns have.
        return _few_columns(table, first, most, size, newest_last)
    if newest_last:
        page.lines[1:] = page.lines[:0:-1]
    return page


def lines(text: list[str], first: int, *, size: int = MOST_BYTES - _HEAD) -> Page:
    """The lines of a text from `first` on, in at most `size` bytes."""
    kept: list[str] = []
    used = 0
    for line in text[first:]:
        shown = _cut(values.printable(line), 1000)
        used += len(shown.encode("utf-8", "backslashreplace")) + 1
        if used > size and kept:
            break
        kept.append(shown)
    return Page(kept, first, first + len(kept))


def coverage(found: Coverage) -> str:
    """One line: the hosts that have answered, and with reasons those that have not."""
    parts = [f"hosts: {found.hosts_answered} of {found.hosts_asked}"]
    if found.missing:
        few = [f"{_cut(values.printable(one.host), _REASON)} ({_cut(values.printable(one.reason), _REASON)})" for one in found.missing]
        more = len(few) - _MOST_MISSING
        parts.append("missing: " + ", ".join(few[:_MOST_MISSING]) + (f" and {more} more" if more > 0 else ""))
    if found.truncated:
        parts.append("TRUNCATED: rows are missing")
    parts.append(f"scanned {found.rows_scanned} rows in {found.elapsed_ms:.0f} ms")
    return _fitted("; ".join(parts), _HEAD - 500)


def place(page: Page, total: int, cursor: str | None, *, noun: str = "row") -> str:
    """One line: which rows follow, and the cursor of those after them."""
    if page.next == page.first:
        return f"no {noun}s" if total == 0 else f"no {noun}s after {page.first} of {total}"
    if cursor is None and page.first == 0:
        return f"{total} {noun}{'' if total == 1 else 's'}"
    after = f'; next: cursor "{cursor}"' if cursor is not None else "; the last"
    return f"{noun}s {page.first + 1} to {page.next} of {total}{after}"


def joined(*parts: str | list[str]) -> str:
    """The lines as one answer, which is at most `MOST_BYTES` long."""
    text = "\n".join(line for part in parts for line in ([part] if isinstance(part, str) else part))
    return shown(text)


def shown(text: str) -> str:
    """The text as one answer of at most `MOST_BYTES`: of what a terminal would act upon, only ends of lines and tabs stay."""
    # The text beyond the limit need not be made printable.
    lines = text[:MOST_BYTES].split("\n")
    return _fitted(
        "\n".join("\t".join(map(values.printable, line.split("\t"))) for line in lines), MOST_BYTES, is_cut=len(text) > MOST_BYTES
    )


def names(found: list[object]) -> str:
    """Names of the job in one line."""
    return ", ".join(_cut(values.printable(str(name)), CELL) for name in found) or "none"


def _rows(table: Any, names: list[str], first: int, most: int, size: int, width: int) -> Page:
    kept = ["\t".join(names)]
    used = len(kept[0].encode()) + 1
    for row in values.rows(table, first, first + most):
        line = "\t".join(_value(name, value, width) for name, value in zip(names, row, strict=True))
        used += len(line.encode("utf-8", "backslashreplace")) + 1
        if used > size:
            break
        kept.append(line)
    return Page(kept, first, first + len(kept) - 1)


def _few_columns(table: Any, first: int, most: int, size: int, newest_last: bool) -> Page:
    few = max(1, size // 2 // CELL)
    names = values.names(table)
    page = rows(table.select(list(range(few))), first, most, size=size - 200, newest_last=newest_last)
    return page._replace(lines=[f"the first {few} of {len(names)} columns: select fewer", *page.lines])


def _value(name: str, value: object, width: int) -> str:
    if value is None:
        return "null"
    # A time is shown as its number, with which statements compare.
    return _cut(str(value) if type(value) is int else formats.cell(name, value), width)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[:width]}…+{len(text) - width}"


def _fitted(text: str, size: int, *, is_cut: bool = False) -> str:
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= size - 3 * is_cut:
        return data.decode() + "…" * is_cut
    return data[: size - 3].decode("utf-8", "ignore") + "…"
