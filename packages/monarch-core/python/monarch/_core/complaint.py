"""Lines of ours on stderr: rare, and never a reason to fail, also where the user has closed or replaced it."""

from __future__ import annotations

import sys


def complain(text: str) -> None:
    try:
        if sys.stderr is not None:  # pyright: ignore[reportUnnecessaryComparison]
            print(text, file=sys.stderr, flush=True)
    except Exception:  # it is closed, or somebody's own object
        return
