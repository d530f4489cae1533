"""Lines of the runtime on stderr. They are rare and never cause a failure, even if the user has closed or replaced stderr."""

from __future__ import annotations

import sys


def complain(text: str) -> None:
    try:
        if sys.stderr is not None:  # pyright: ignore[reportUnnecessaryComparison]
            # One write call: other threads and processes write there too.
            sys.stderr.write(text + "\n")
            sys.stderr.flush()
    except Exception:  # stderr is closed, or an object of the user
        return
