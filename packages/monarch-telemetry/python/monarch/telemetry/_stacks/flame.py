"""Flame graphs as SVG: one picture of many stacks.

A rectangle is a call, as wide as its share of all counts, above its caller. The picture is one file without scripts, fonts or other files:
the full name of a call is its tooltip. Rectangles too narrow to be seen are left out, so the size of the picture is bounded.
"""

from __future__ import annotations

import html
import unicodedata
import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from operator import itemgetter
from typing import NamedTuple

from monarch.telemetry.errors import TelemetryError

# Names of calls from the outermost to the innermost, and the number of samples of the stack.
Counted = tuple[Sequence[str], int]

# Pixels: the least and the largest width of the picture, the height of a call, the margins, the width of a character of this size.
_LEAST_WIDTH, _MOST_WIDTH = 320, 4000
_ROW, _SIDE, _TOP, _BOTTOM = 17, 10, 44, 26
_FONT, _COLUMN = 12, 7.3
# The narrowest call that is drawn, in pixels; the most rows; the most calls of one picture. A picture of that size has about 5 MB.
_NARROWEST = 0.4
_MOST_ROWS = 250
_MOST_CALLS = 20_000
# The most characters of a name in a tooltip.
_MOST_NAME = 2_000

# Attributes instead of a style sheet, which a strict Content-Security-Policy refuses.
_TEXT = 'font-family="ui-monospace,monospace" font-size="12" fill="#1b1b1b"'


class _Box(NamedTuple):
    """A call that is drawn: its left edge and width as shares of the whole, its row from the bottom, the stacks that it is in."""

    name: str
    left: float
    share: float
    row: int
    first: int
    end: int


class _Sorted:
    """Stacks in order: those that have calls in common are neighbours, so a call is a range of them. Sums give the counts of a range."""

    def __init__(self, stacks: Iterable[Counted]) -> None:
        given = list(stacks)
        for names, count in given:
            if count < 0:
                raise TelemetryError(f"the stack that ends in {names[-1] if names else 'no call'!r} has the count {count}, below 0")
        found = sorted(((tuple(names[:_MOST_ROWS]), count) for names, count in given), key=itemgetter(0))
        self.stacks = [names for names, _ in found]
        self.cut = any(len(names) > _MOST_ROWS for names, _ in given)
        self._sums = [0, *accumulate(count for _, count in found)]
        self.all = self._sums[-1]

    def count(self, first: int, end: int) -> int:
        return self._sums[end] - self._sums[first]

    def share(self, first: int, end: int) -> float:
        """The count of a range as a share of all; 0 where all are 0."""
        return self.count(first, end) / max(1, self.all)

    def calls(self, box: _Box) -> Iterator[tuple[str, int, int]]:
        """The calls above one: their names and ranges."""
        depth, stacks, index = box.row, self.stacks, box.first
        # A stack that ends here precedes those that continue.
        while index < box.end and len(stacks[index]) == depth:
            index += 1
        while index < box.end:
            name, first = stacks[index][depth], index
            while index < box.end and stacks[index][depth] == name:
                index += 1
            yield name, first, index


def flame(stacks: Iterable[Counted], *, title: str = "Flame graph", unit: str = "samples", width: int = 1200) -> str:
    """The SVG of counted stacks. `unit` names what is counted, `width` is in pixels, 320 to 4000.

    Raises `TelemetryError` for a negative count or another width.
    """
    if not _LEAST_WIDTH <= width <= _MOST_WIDTH:
        raise TelemetryError(f"the width {width} is not within {_LEAST_WIDTH} to {_MOST_WIDTH} pixels")
    found = _Sorted(stacks)
    inner = width - 2 * _SIDE
    boxes, left_out = _boxes(found, _NARROWEST / inner)
    rows = 1 + max((box.row for box in boxes), default=0)
    height = _TOP + rows * _ROW + _BOTTOM
    edge = f"{found.all:,} {unit}" + (f"; {left_out:,} narrow calls are not drawn" if left_out else "")
    edge += f"; calls above row {_MOST_ROWS} are not drawn" if found.cut else ""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img">',
        f"<title>{_escaped(title)}</title><g {_TEXT}>",
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        f'<text font-size="15" x="{width / 2:g}" y="26" text-anchor="middle">{_escaped(_shortened(title, inner))}</text>',
        f'<text font-size="11" fill="#6b6b6b" x="{_SIDE}" y="{height - 9}">{_escaped(_shortened(edge, inner))}</text>',
    ]
    for box in boxes:
        x, y, wide = _SIDE + box.left * inner, height - _BOTTOM - (box.row + 1) * _ROW, box.share * inner
        counts = f"{found.count(box.first, box.end):,} {_escaped(unit)}, {100 * found.share(box.first, box.end):.2f} %"
        label = _shortened(box.name, wide - 6)
        text = f'<text x="{x + 3:.1f}" y="{y + _FONT}">{_escaped(label)}</text>' if label else ""
        parts.append(
            f"<g><title>{_escaped(box.name[:_MOST_NAME])} ({counts})</title>"
            f'<rect x="{x:.2f}" y="{y}" width="{max(wide - 0.2, 0.2):.2f}" height="{_ROW - 1}" rx="1" fill="{_color(box.name)}"/>{text}</g>'
        )
    return "\n".join([*parts, "</g></svg>\n"])


def _boxes(stacks: _Sorted, least: float) -> tuple[list[_Box], int]:
    """The calls to draw, and the number of those that are too narrow, without what is above them."""
    boxes: list[_Box] = []
    left_out = 0
    waiting = [_Box("all", 0.0, 1.0, 0, 0, len(stacks.stacks))] if stacks.all else []
    while waiting:
        box = waiting.pop()
        boxes.append(box)
        left = box.left
        for name, first, end in stacks.calls(box):
            share = stacks.share(first, end)
            if share >= least:
                waiting.append(_Box(name, left, share, box.row + 1, first, end))
            elif share:
                left_out += 1
            left += share
    if len(boxes) > _MOST_CALLS:
        left_out += len(boxes) - _MOST_CALLS
        boxes = sorted(boxes, key=lambda box: (-box.share, box.row, box.left))[:_MOST_CALLS]
    return sorted(boxes, key=lambda box: (box.row, box.left)), left_out


def _color(name: str) -> str:
    """A warm colour that depends on the name alone, so that a call has the same one in every picture."""
    mixed = zlib.crc32(name.encode("utf-8", "replace"))
    return f"rgb({220 + mixed % 36},{130 + (mixed >> 8) % 80},{60 + (mixed >> 16) % 40})"


def _shortened(text: str, pixels: float) -> str:
    """What fits, with an ellipsis; empty where fewer than three columns fit. Wide characters have two columns."""
    columns = int(pixels / _COLUMN)
    if columns < 3:
        return ""
    used = 0
    for index, char in enumerate(text):
        used += 2 if unicodedata.east_asian_width(char) in "WF" else 1
        if used > columns:
            return _without_last(text[:index], columns) + "…"
    return text


def _without_last(text: str, columns: int) -> str:
    """The text without its last character where the ellipsis needs the room."""
    used = sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)
    return text if used < columns else text[:-1]


def _escaped(text: str) -> str:
    """Text for XML, which has no place for control characters, surrogates and the two last code points of a plane."""
    return html.escape("".join(char if _is_xml(char) else "\ufffd" for char in text))


def _is_xml(char: str) -> bool:
    code = ord(char)
    return 0x20 <= code < 0x7F or 0xA0 <= code < 0xD800 or 0xE000 <= code < 0xFFFE or code > 0xFFFF
