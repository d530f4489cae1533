"""The question for lines of logs, by mesh, rank, level and time."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from monarch.telemetry._queries.durations import seconds
from monarch.telemetry.errors import QueryError

# In ascending order: a minimum level includes the later ones.
_LEVELS = (("TRACE",), ("DEBUG",), ("INFO",), ("WARN", "WARNING"), ("ERROR",), ("CRITICAL", "FATAL"))
# The most rows of one question; the cursor leads through them.
MOST_LINES = 5000
_LONGEST_LINE = 600
_DATE = re.compile(r"\d{4}-\d\d-\d\d")


def statement(mesh: str | None, rank: int | None, level: str | None, since: str | None, *, now_us: int) -> str:
    """The newest lines first. `QueryError` for a level or a time that is none."""
    where: list[str] = []
    if mesh is not None:
        where.append(f"mesh_name = {quoted(mesh)}")
    if rank is not None:
        where.append(f"rank = {rank}")
    if level is not None:
        where.append(f"upper(level) IN ({', '.join(map(quoted, levels(level)))})")
    if since is not None:
        where.append(f"timestamp_us >= {moment(since, now_us)}")
    condition = f" WHERE {' AND '.join(where)}" if where else ""
    return (
        f"SELECT timestamp_us, host, mesh_name, rank, stream, level, left(line, {_LONGEST_LINE}) AS line FROM logs{condition}"
        f" ORDER BY timestamp_us DESC, seq DESC LIMIT {MOST_LINES}"
    )


def levels(least: str) -> list[str]:
    """The levels from this one up."""
    place = next((at for at, names in enumerate(_LEVELS) if least.strip().upper() in names), None)
    if place is None:
        raise QueryError(f"there is no level {least[:40]!r}", hint=f"levels are {', '.join(names[0] for names in _LEVELS)}")
    return [name for names in _LEVELS[place:] for name in names]


def moment(since: str, now_us: int) -> int:
    """`10m` before now, a time in ISO form (UTC where it has no zone), or microseconds since the epoch."""
    text = since.strip()
    if text.isascii() and text.isdigit() and len(text) >= 12:
        return min(int(text), 2**63 - 1)
    try:
        if _DATE.match(text):
            found = datetime.fromisoformat(text)
            return round((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1e6)
        return now_us - round(seconds(text.removesuffix(" ago")) * 1e6)
    except (ValueError, OverflowError):
        raise QueryError(f"{since[:40]!r} is no time", hint="write 10m, 2025-01-31T12:00:00, or microseconds since the epoch") from None


def quoted(text: str) -> str:
    """A text as SQL has it."""
    return "'" + text.replace("'", "''") + "'"
