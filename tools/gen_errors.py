"""The page of errors, docs/errors.md, from the table in monarch-core."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from tools.project import CORE

INTRODUCTION = """\
# Errors

What goes wrong at run time, as one closed list. Every such exception has a `code`, which is stable and may be tested for, and a
`hint`, which stands last in the text, or `None`. The first line of a text names the culprit: actor, rank, host, pid and cause.
Misuse of the API raises a builtin exception (`TypeError`, `ValueError`, ...) in the caller, before anything is sent, and is not listed.
"""


def text() -> str:
    """The page, without the note on where it comes from."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    # The table is pure Python: the page needs no build and no installation.
    sys.path.insert(0, str(CORE / "python"))
    try:
        from monarch._core.errors.errors import ERROR_TABLE
    finally:
        del sys.path[0]

    yield INTRODUCTION
    for row in ERROR_TABLE:
        yield f"## {row.code}\n"
        yield f"`{row.error}`: {row.situation}.\n"
        yield f"```text\n{row.template}\n```\n"
        if row.hint is not None:
            yield f"Hint: {row.hint}.\n"
