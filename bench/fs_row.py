"""A row of the table of results, and the numbers in it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple


class Row(NamedTuple):
    what: str
    measured: str
    goal: str = ""


def table(rows: Sequence[Row]) -> str:
    return "\n".join(["| what | measured | goal |", "|---|---:|---:|", *(f"| {row.what} | {row.measured} | {row.goal} |" for row in rows)])


def milliseconds(seconds: Sequence[float]) -> str:
    """The median, and the range of several values."""
    text = f"{statistics.median(seconds) * 1e3:,.0f} ms"
    return text if len(seconds) == 1 else f"{text} ({min(seconds) * 1e3:,.0f} to {max(seconds) * 1e3:,.0f})"


def megabytes(*counts: float) -> str:
    return ", ".join(f"{count / 1e6:,.1f} MB" for count in counts)


def requests(counts: dict[str, int]) -> str:
    return ", ".join(f"{n:,} {kind}" for kind, n in counts.items()) or "none"


def ratio(pairs: Sequence[tuple[float, float]]) -> str:
    """The median of the ratios of pairs, and the range of the middle half."""
    found = sorted(here / there for here, there in pairs)
    at = len(found) // 4
    text = f"{statistics.median(found):.2f}"
    return text if len(found) < 4 else f"{text} ({found[at]:.2f} to {found[-1 - at]:.2f})"
