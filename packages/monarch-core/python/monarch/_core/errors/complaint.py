"""Lines of ours on stderr: rare, and never a reason to fail, also where the user has closed or replaced it."""

from __future__ import annotations

import sys


def complain(text: str) -> None:
    try:
        if sys.stderr is not None:  # pyright: ignore[reportUnnecessaryComparison]
            # In one piece: others write there too.
            sys.stderr.write(text + "\n")
            sys.stderr.flush()
    except Exception:  # it is closed, or somebody's own object
        return
