"""Flame graphs as SVG: one picture of many stacks, and of the difference of two sets of stacks.

A rectangle is a call, as wide as its share of all counts, above its caller. The picture is one file without scripts, fonts or other files:
the full name of a call is its tooltip. Rectangles too narrow to be seen are left out, so the size of the picture is bounded.

The difference shows calls by the mean of their shares before and after, which keeps calls that are in one of the sets only. Red calls have
a larger share after, blue calls a smaller one.
"""

from __future__ import annotations

import html
import unicodedata
import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from operator import itemgetter
from typing import NamedTuple

from monarch.telemetry._stacks.folding import folded, waits_for_work
from monarch.telemetry._stacks.frames import Frame, ProcStacks
from monarch.telemetry._stacks.merged import StackReport
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


class _Counts(NamedTuple):
    """How often a call was found in each of the sets."""

    before: int
    after: int


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

    def __init__(self, before: Iterable[Counted], after: Iterable[Counted]) -> None:
        both = [*((names, count, 0) for names, count in before), *((names, 0, count) for names, count in after)]
        for names, one, other in both:
            if one + other < 0:
                raise TelemetryError(f"the stack that ends in {names[-1] if names else 'no call'!r} has the count {one + other}, below 0")
        found = sorted(((tuple(names[:_MOST_ROWS]), one, other) for names, one, other in both), key=itemgetter(0))
        self.stacks = [names for names, _, _ in found]
        self.cut = any(len(names) > _MOST_ROWS for names, _, _ in both)
        self.before = [0, *accumulate(one for _, one, _ in found)]
        self.after = [0, *accumulate(other for _, _, other in found)]
        self.all = self.counts(0, len(found))

    def counts(self, first: int, end: int) -> _Counts:
        return _Counts(self.before[end] - self.before[first], self.after[end] - self.after[first])

    def shares(self, first: int, end: int) -> tuple[float, float]:
        """Before and after, of all of the set; 0 of an empty set."""
        counts = self.counts(first, end)
        return counts.before / max(1, self.all.before), counts.after / max(1, self.all.after)

    def share(self, first: int, end: int) -> float:
        """The width of a range. Where one of the sets is empty, the other one has the whole width."""
        return sum(self.shares(first, end)) / max(1, (self.all.before > 0) + (self.all.after > 0))

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
    return _draw(_Sorted((), stacks), title, unit, width, compared=False)


def difference(
    before: Iterable[Counted],
    after: Iterable[Counted],
    *,
    title: str = "Difference of flame graphs",
    unit: str = "samples",
    width: int = 1200,
) -> str:
    """The SVG of what has changed between two sets of counted stacks; their totals may differ. The rest is as for `flame`."""
    return _draw(_Sorted(before, after), title, unit, width, compared=True)


def counted_procs(procs: Iterable[ProcStacks], *, idle: bool = False) -> list[Counted]:
    """Each thread of the procs once, without the calls of the framework; `idle` keeps threads that wait for work."""
    return [
        (tuple(_call(frame) for frame in reversed(folded(thread.frames))), 1)
        for proc in procs
        for thread in proc.threads
        if idle or not waits_for_work(thread)
    ]


def counted_report(report: StackReport) -> list[Counted]:
    """The entries of a report, counted by threads."""
    return [
        (tuple(_call(Frame(one.name, one.filename, one.line)) for one in reversed(entry.calls)), entry.threads) for entry in report.entries
    ]


def _call(frame: Frame) -> str:
    """Calls of different lines of a function are different."""
    name = frame.filename.rpartition("/")[2] or frame.module or ""
    return f"{frame.name} ({name}:{frame.line})" if frame.line else f"{frame.name} ({name})"


def _draw(stacks: _Sorted, title: str, unit: str, width: int, *, compared: bool) -> str:
    if not _LEAST_WIDTH <= width <= _MOST_WIDTH:
        raise TelemetryError(f"the width {width} is not within {_LEAST_WIDTH} to {_MOST_WIDTH} pixels")
    inner = width - 2 * _SIDE
    boxes, left_out = _boxes(stacks, _NARROWEST / inner)
    rows = 1 + max((box.row for box in boxes), default=0)
    height = _TOP + rows * _ROW + _BOTTOM
    totals = f"{stacks.all.before:,} {unit} before, {stacks.all.after:,} after" if compared else f"{stacks.all.after:,} {unit}"
    edge = totals + (f"; {left_out:,} narrow calls are not drawn" if left_out else "")
    edge += f"; calls above row {_MOST_ROWS} are not drawn" if stacks.cut else ""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img">',
        f"<title>{_escaped(title)}</title><g {_TEXT}>",
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        f'<text font-size="15" x="{width / 2:g}" y="26" text-anchor="middle">{_escaped(_shortened(title, inner))}</text>',
        f'<text font-size="11" fill="#6b6b6b" x="{_SIDE}" y="{height - 9}">{_escaped(_shortened(edge, inner))}</text>',
    ]
    for box in boxes:
        x, y, wide = _SIDE + box.left * inner, height - _BOTTOM - (box.row + 1) * _ROW, box.share * inner
        color = _changed(*stacks.shares(box.first, box.end)) if compared else _color(box.name)
        label = _shortened(box.name, wide - 6)
        text = f'<text x="{x + 3:.1f}" y="{y + _FONT}">{_escaped(label)}</text>' if label else ""
        parts.append(
            f"<g><title>{_escaped(box.name[:_MOST_NAME])} ({_counts(stacks, box, unit, compared)})</title>"
            f'<rect x="{x:.2f}" y="{y}" width="{max(wide - 0.2, 0.2):.2f}" height="{_ROW - 1}" rx="1" fill="{color}"/>{text}</g>'
        )
    return "\n".join([*parts, "</g></svg>\n"])


def _boxes(stacks: _Sorted, least: float) -> tuple[list[_Box], int]:
    """The calls to draw, and the number of those that are too narrow, without what is above them."""
    boxes: list[_Box] = []
    left_out = 0
    waiting = [_Box("all", 0.0, 1.0, 0, 0, len(stacks.stacks))] if any(stacks.all) else []
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


def _counts(stacks: _Sorted, box: _Box, unit: str, compared: bool) -> str:
    before, after = (100 * one for one in stacks.shares(box.first, box.end))
    if compared:
        return f"{before:.2f} % before, {after:.2f} % after, {after - before:+.2f}"
    return f"{stacks.counts(box.first, box.end).after:,} {_escaped(unit)}, {after:.2f} %"


def _color(name: str) -> str:
    """A warm colour that depends on the name alone, so that a call has the same one in every picture."""
    mixed = zlib.crc32(name.encode("utf-8", "replace"))
    return f"rgb({220 + mixed % 36},{130 + (mixed >> 8) % 80},{60 + (mixed >> 16) % 40})"


def _changed(before: float, after: float) -> str:
    """Red for a call with a larger share after, blue for one with a smaller share: full where its share has doubled or halved."""
    change = (after - before) / max(after, before, 1e-12)
    faded = round(235 - 130 * min(1.0, 2 * abs(change)))
    return f"rgb(240,{faded},{faded})" if change > 0 else f"rgb({faded},{faded},240)" if change < 0 else "rgb(232,232,232)"


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
