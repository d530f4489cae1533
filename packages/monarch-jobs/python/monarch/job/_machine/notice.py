"""What a job reports to the user of a script beside its results: lines on stderr."""

from __future__ import annotations

import sys


def notice(line: str) -> None:
    """One line on stderr."""
    print(line, file=sys.stderr, flush=True)
