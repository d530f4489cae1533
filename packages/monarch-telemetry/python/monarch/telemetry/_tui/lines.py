"""Lines of text with roles instead of colours: what views show, made without a terminal.

Widths are in cells of a terminal, of which a Chinese character has two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from rich.cells import cell_len, chop_cells, set_cell_size

from monarch.telemetry._queries.values import printable

Role = Literal["", "dim", "key", "title", "good", "busy", "warn", "bad"]
ROLES: tuple[Role, ...] = ("dim", "key", "title", "good", "busy", "warn", "bad")


class Span(NamedTuple):
    """A part of a line. Make one with `span`, which escapes what a terminal would act upon."""

    text: str
    role: Role = ""


Line = tuple[Span, ...]
EMPTY: Line = ()


def span(text: object, role: Role = "") -> Span:
    """The text as a terminal shows it: control characters and marks of direction are escaped."""
    return Span(printable(str(text)), role)


def line(text: object, role: Role = "") -> Line:
    """A line of one span."""
    return (span(text, role),)


def lines(text: str, role: Role = "") -> list[Line]:
    """A line for each line of a text."""
    return [line(one, role) for one in text.replace("\r\n", "\n").split("\n")]


def plain(of: Line) -> str:
    """The text of a line."""
    return "".join(one.text for one in of)


def width(of: Line) -> int:
    """Cells of a line."""
    return sum(cell_len(one.text) for one in of)


def cut(text: str, cells: int) -> str:
    """The text in at most so many cells; one that is cut ends with `…`."""
    if cell_len(text) <= cells:
        return text
    return "" if cells < 1 else set_cell_size(text, cells - 1).rstrip() + "…"


def padded(text: str, cells: int) -> str:
    """The text in exactly so many cells."""
    return set_cell_size(cut(text, cells), cells)


def wrapped(of: Line, cells: int, *, indent: int = 2) -> list[Line]:
    """The line in pieces of at most so many cells; those after the first are indented."""
    if cells <= 0 or width(of) <= cells:
        return [of]
    indent = min(indent, cells // 2)
    found: list[list[Span]] = [[]]
    left = cells
    for one in of:
        rest = one.text
        while rest:
            if cell_len(rest) <= left:
                found[-1].append(Span(rest, one.role))
                left -= cell_len(rest)
                break
            head = _head(rest, left)
            word = rest.split(" ", 1)[0]
            if not head.endswith(" ") and left < cells - indent and cell_len(word) <= cells - indent:
                # The word fits on a line of its own.
                head = ""
            if head:
                found[-1].append(Span(head, one.role))
                rest = rest[len(head) :]
            found.append([Span(" " * indent)])
            left = cells - indent
            if not head and left < min(2, cell_len(rest)):
                # Not even one character of two cells fits.
                return [tuple(piece) for piece in found[:-1]]
    return [tuple(piece) for piece in found]


def _head(text: str, cells: int) -> str:
    """As much of the text as fits, up to a space where there is one in its second half."""
    pieces = chop_cells(text, cells) if cells > 0 else []
    head = pieces[0] if pieces and cell_len(pieces[0]) <= cells else ""
    at = head.rfind(" ")
    return head[: at + 1] if at >= len(head) // 2 and len(head) < len(text) else head


def table(names: Sequence[str], rows: Sequence[Sequence[object]], *, most: int = 60) -> list[Line]:
    """Rows in columns: a line with the names, then a line a row. Columns of numbers are aligned to the right."""
    texts = [[cut(cell(value), most) for value in row] for row in rows]
    titles = [cut(printable(name), most) for name in names]
    sizes = [max([cell_len(title), *(cell_len(row[at]) for row in texts)]) for at, title in enumerate(titles)]
    numbers = [all(_is_number(row[at]) for row in rows) for at in range(len(titles))]

    def placed(values: Sequence[str]) -> str:
        cells = [
            " " * (size - cell_len(value)) + value if right else padded(value, size)
            for value, size, right in zip(values, sizes, numbers, strict=True)
        ]
        return "  ".join(cells).rstrip()

    return [(Span(placed(titles), "title"),), *((Span(placed(row)),) for row in texts)]


def cell(value: object) -> str:
    """A value as text."""
    return "null" if value is None else printable(str(value))


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))
