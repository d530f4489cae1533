"""Sets of ranks in compressed form: sorted fragments of neighbours, printed as `0,2-5`.

Equal sets have equal forms, so the union of sets does not depend on the order in which they are joined.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from monarch.telemetry._stacks.fields import malformed

# First and last rank of each run of adjacent ranks, in order; at least one rank is between two runs.
Ranks = tuple[tuple[int, int], ...]

_FORM = re.compile(r"(?:\d{1,19}(?:-\d{1,19})?(?:,\d{1,19}(?:-\d{1,19})?)*)?", re.ASCII)


def ranks_of(ranks: Iterable[int]) -> Ranks:
    """The compressed form of ranks in any order, with repetitions or without."""
    return union((rank, rank) for rank in ranks)


def union(runs: Iterable[tuple[int, int]]) -> Ranks:
    """The compressed form of runs that may overlap."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(runs):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return tuple(found)


def size(ranks: Ranks) -> int:
    """The number of ranks in the set."""
    return sum(last - first + 1 for first, last in ranks)


def print_ranks(ranks: Ranks, most: int | None = None) -> str:
    """`0,2-5`. Runs above `most` are replaced by an ellipsis and the number of all ranks."""
    shown = ranks if most is None else ranks[:most]
    text = ",".join(str(first) if first == last else f"{first}-{last}" for first, last in shown)
    return text if len(shown) == len(ranks) else f"{text},… {size(ranks):,} ranks"


def parse_ranks(path: str, text: str) -> Ranks:
    """The set that `print_ranks` has printed. `path` is the place of the text in its document."""
    if not _FORM.fullmatch(text):
        raise malformed(path, text, "ranks such as '0,2-5'")
    runs: list[tuple[int, int]] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        runs.append((int(first), int(last or first)))
    if any(first > last for first, last in runs):
        raise malformed(path, text, "ranks such as '0,2-5'")
    return union(runs)
