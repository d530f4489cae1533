"""The page of errors, docs/errors.md, from the table in monarch-core and the rows that the other wheels declare.

The command fails with a list of problems: a code of an error without a row, a code of two rows, or a malformed row.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

from tools.declarations import of_wheels
from tools.error_codes import carried
from tools.project import CORE, PACKAGES

GROUP = "monarch.errors"
INTRODUCTION = """\
# Errors

This page lists every error at run time with its code and its remedy. The list is closed: programs may test the `code` of an exception,
which is stable. `hint` is the last part of the text, or None. The first line of a text names the culprit: actor, rank, host, pid and
cause. Misuse of the API raises a builtin exception (`TypeError`, `ValueError`, ...) in the caller before anything is sent, and is not
listed. The errors of other wheels follow those of monarch-core.
"""


def text() -> str:
    """The page, without the note on its source."""
    core, others = _core(), list(of_wheels(GROUP))
    wrong = problems([("monarch-core", core), *others], {name: carried(PACKAGES / name / "python") for name in _wheels()})
    if wrong:
        raise SystemExit("\n".join(f"docs/errors.md: {problem}" for problem in wrong))
    return "\n".join(_lines(core, others))


def problems(tables: Iterable[tuple[str, list[Any]]], codes: dict[str, dict[str, str]]) -> list[str]:
    """The problems of the rows of wheels, by name, and of the codes that their errors carry, with the place of each."""
    from monarch._core.errors.known_rows import problem_of

    found: list[str] = []
    owners: dict[str, str] = {}
    for wheel, rows in tables:
        for row in rows:
            problem = None if isinstance(getattr(row, "error", None), str) else problem_of(row)
            if problem is not None:
                found.append(f"{wheel}: {problem}")
            elif row.code in owners:
                found.append(f"{wheel}: the code `{row.code}` is in a row of {owners[row.code]} already")
            else:
                owners[row.code] = wheel
    for wheel, places in codes.items():
        found += [f"{wheel}: {place} has the code `{code}`, which no row declares" for code, place in places.items() if code not in owners]
    return found


def _core() -> list[Any]:
    # The table is pure Python: the page needs no build and no installation.
    sys.path.insert(0, str(CORE / "python"))
    try:
        from monarch._core.errors.table import ERROR_TABLE
    finally:
        del sys.path[0]
    return list(ERROR_TABLE)


def _wheels() -> list[str]:
    return sorted(path.parent.name for path in PACKAGES.glob("*/pyproject.toml"))


def _lines(core: list[Any], others: list[tuple[str, list[Any]]]) -> Iterator[str]:
    yield INTRODUCTION
    for row in core:
        yield from _row(row, "##")
    for wheel, rows in others:
        yield f"## {wheel}\n"
        for row in rows:
            yield from _row(row, "###")


def _row(row: Any, level: str) -> Iterator[str]:
    yield f"{level} {row.code}\n"
    yield f"`{row.error if isinstance(row.error, str) else row.error.__name__}`: {row.situation}.\n"
    yield f"```text\n{row.template}\n```\n"
    if row.hint is not None:
        yield f"Hint: {row.hint}.\n"
