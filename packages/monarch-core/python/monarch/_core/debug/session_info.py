"""The description of a debug session: the actor and its position."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DebugSessionInfo:
    """An actor at a breakpoint: its name and rank, coordinates by dimension, machine, function and line."""

    __module__ = "monarch.actor"

    actor_name: str
    rank: int
    coords: dict[str, int]
    hostname: str
    function: str | None
    lineno: int | None


# The column headings of the debugger's table.
_HEADER = ("actor", "rank", "coordinates", "host", "function", "line")


def table(infos: list[DebugSessionInfo]) -> str:
    """One line per session below a header; a sentence if there is none."""
    if not infos:
        return "No debug sessions.\n"
    rows = [_HEADER, *(_row(info) for info in infos)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEADER))]
    rows.insert(1, tuple("-" * width for width in widths))
    return "".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() + "\n" for row in rows)


def _row(info: DebugSessionInfo) -> tuple[str, ...]:
    coords = ", ".join(f"{label}={index}" for label, index in info.coords.items())
    return (info.actor_name, str(info.rank), coords, info.hostname, info.function or "", str(info.lineno or ""))
