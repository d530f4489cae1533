"""Stacks of many ranks as one text: ranks that stand at the same place are named together."""

from __future__ import annotations

import re
from collections.abc import Mapping

# Numbers of threads differ from rank to rank.
_THREAD = re.compile(r"^(Current thread|Thread) 0x[0-9a-f]+", re.MULTILINE)


def merged(stacks: Mapping[int, str]) -> str:
    """The different stacks, those of most ranks first, each under the ranks that have it; ranks without stacks are named last."""
    groups: dict[str, list[int]] = {}
    for rank in sorted(stacks):
        groups.setdefault(_THREAD.sub(r"\1", stacks[rank]).strip(), []).append(rank)
    lines: list[str] = []
    for text, ranks in sorted(groups.items(), key=lambda one: (not one[0], -len(one[1]), one[1][0])):
        lines.append(f"{'rank' if len(ranks) == 1 else 'ranks'} {spans(ranks)}:")
        lines += ["  " + line for line in (text or "no stacks: not a Python program, or it does not answer").split("\n")]
    return "\n".join(lines)


def spans(ranks: list[int]) -> str:
    """Sorted ranks as spans: `0-3, 7`."""
    found: list[list[int]] = []
    for rank in ranks:
        if found and found[-1][1] == rank - 1:
            found[-1][1] = rank
        else:
            found.append([rank, rank])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in found)
