"""Stacks of programs as texts: those of one program as tracebacks, those of many ranks together where they stand at the same place."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

# Numbers of threads differ from rank to rank.
_THREAD = re.compile(r"^(Current thread|Thread) 0x[0-9a-f]+", re.MULTILINE)
# Frames in the format of faulthandler, and the frames before a program: of the file that starts it, of `runpy` and of imports.
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$')
_HEAD = re.compile(r"^((?:Current thread|Thread) 0x[0-9a-f]+.*) \(most recent call first\):$")
_BESIDE = re.compile(r"<frozen (runpy|importlib\b.*)>|(.*/)?runpy\.py|.*/monarch/spmd/start_program\.py")


def of_program(dump: str, source_line: Callable[[str, int], str]) -> str:
    """What faulthandler has written, as tracebacks: each begins with the first frame of the program, whose thread comes first.

    `source_line(file, number)` has the text of a line, empty where it is not known.
    """
    threads: list[tuple[str, list[str]]] = []
    for line in dump.splitlines():
        if head := _HEAD.match(line):
            threads.append((head[1], []))
        elif threads and (found := _FRAME.match(line)):
            if not _BESIDE.fullmatch(found[1]):
                source = source_line(found[1], int(found[2])).strip()
                shown = f'  File "{found[1]}", line {found[2]}, in {found[3]}'
                threads[-1][1].insert(0, f"{shown}\n    {source}" if source else shown)
        elif threads and line.strip():
            # A line such as `...`, for frames that are left out.
            threads[-1][1].insert(0, line)
    threads.sort(key=lambda one: not one[0].startswith("Current"))
    return "\n".join("\n".join((f"{head} (most recent call last):", *lines)) for head, lines in threads)


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
