"""The home of Monarch of a user, `MONARCH_HOME`, and what is wrong with it."""

from __future__ import annotations

import os
from pathlib import Path

NO_HOME = f"the user {os.getuid()} has no home directory: HOME is not set, and the user database has no entry"
SET_HOME = "set MONARCH_HOME to a directory that this user may write"


def home() -> Path | None:
    """`MONARCH_HOME`, else `~/.monarch`; None for a user without a home directory."""
    path = os.path.expanduser(os.environ.get("MONARCH_HOME") or "~/.monarch")
    # The tilde remains if HOME is not set and the user database has no entry: it would be a directory of that name.
    return None if path.startswith("~") else Path(os.path.abspath(path))


def home_problem() -> str:
    """Why this user can keep nothing below `MONARCH_HOME`, with the remedy; or ""."""
    place = home()
    if place is None:
        return f"{NO_HOME} ({SET_HOME})"
    if not os.access(existing_part(place), os.W_OK | os.X_OK, effective_ids=True):
        return f"{place} cannot be written by the user {os.getuid()} ({SET_HOME})"
    return ""


def existing_part(folder: Path) -> Path:
    """The folder, or the innermost one above it that exists."""
    return next((path for path in (folder, *folder.parents) if os.path.exists(path)), Path("/"))
