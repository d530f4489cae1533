"""Files with the state of a process, for bug reports: masked, for their user alone, and only the newest."""

from __future__ import annotations

import os
import time
from pathlib import Path

# The most files in the folder.
KEPT = 32


def write(folder: Path, name: str, text: str) -> Path:
    """Writes a file of this name and the time; its path. The oldest of the folder go. `OSError`."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"{name}-{time.time_ns()}.json"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(text)
    for old in sorted(folder.glob("*.json"), key=lambda one: one.name.rpartition("-")[2])[:-KEPT]:
        old.unlink(missing_ok=True)
    return path
