"""Imports from a mounted environment beside imports from the local disk, warm and cold, each by a fresh interpreter."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

import fs_reads
from fs_one import client
from fs_row import Row, ratio, requests
from fs_served import served
from fs_tree import environment

PINS = ("numpy==2.4.6", "pandas==3.1.1", "scipy==1.17.1", "sqlalchemy==2.1.9", "networkx==3.6.1", "sympy==1.14.0")
MODULES = "numpy, pandas, scipy, sqlalchemy, networkx, sympy"


def imports(_: Path, folder: Path, __: int, pairs: int) -> list[Row]:
    """Measures imports in pairs of alternating order. Cold: all caches of the machine are dropped before each import; the store has all
    files.
    """
    try:
        source = environment("fs-imports", *PINS)
    except RuntimeError as e:
        return [Row("imports", f"not measured: {e}")]
    target = f"{folder}/environment"
    here, there = f"{target}/bin/python", f"{source}/bin/python"
    warm: list[tuple[float, float]] = []
    proc: list[tuple[float, float]] = []
    cold: list[tuple[float, float]] = []
    with client(folder) as made:
        mounted = made.ask("mount", str(source), target, "hot", "compile")
        filled = made.ask("complete", target)
        for python in (here, there, here, there):
            fs_reads.imported(python, MODULES)
        before = served(target)
        fs_reads.imported(here, MODULES)
        warm_requests = served(target).since(before).requests
        before = served(target)
        fs_reads.imported(here, MODULES, in_proc=True)
        proc_requests = served(target).since(before).requests
        for number in range(pairs):
            proc.append(_pair(number, here, there, cold=False, in_proc=True))
            warm.append(_pair(number, here, there, cold=False))
        fs_reads.drop_caches()
        before = served(target)
        fs_reads.imported(here, MODULES, in_proc=True)
        cold_requests = served(target).since(before).requests
        for number in range(pairs):
            cold.append(_pair(number, here, there, cold=True, in_proc=True))
        made.ask("close", target)
    return [
        Row("environment with six packages mounted; then complete", f"{mounted * 1e3:,.0f} ms; {filled * 1e3:,.0f} ms"),
        Row(f"warm import of {MODULES}, modules opened as procs do", _text(proc), "1.05 of the disk"),
        Row("requests of one", requests(proc_requests)),
        Row("the same by another interpreter, which asks `isatty` of each module", _text(warm)),
        Row("requests of one", requests(warm_requests)),
        Row("cold import, modules opened as procs do, all caches dropped", _text(cold), "1.25 of the disk"),
        Row("requests of one cold import", requests(cold_requests)),
    ]


def _pair(number: int, here: str, there: str, *, cold: bool, in_proc: bool = False) -> tuple[float, float]:
    seen: dict[str, float] = {}
    for python in (here, there) if number % 2 else (there, here):
        if cold:
            fs_reads.drop_caches()
        seen[python] = fs_reads.imported(python, MODULES, in_proc=in_proc)
    return seen[here], seen[there]


def _text(pairs: Sequence[tuple[float, float]]) -> str:
    here, there = (statistics.median(pair[at] for pair in pairs) * 1e3 for at in (0, 1))
    return f"{here:,.0f} ms; disk {there:,.0f}, ratio {ratio(pairs)}, {len(pairs)} pairs"
