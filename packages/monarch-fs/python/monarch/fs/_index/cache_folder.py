"""The folder below `MONARCH_HOME` of files that only save time, bounded in number and bytes."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from monarch.fs._home import home


def default_folder() -> Path:
    """Where indexes are kept: `fs/index` below `MONARCH_HOME`, by default `~/.monarch`.

    A user without a home directory keeps none: nothing can be made below the path that is returned then.
    """
    return (home() or Path(os.devnull)) / "fs" / "index"


def trim(folder: Path, most_bytes: int, most_files: int) -> None:
    """Removes the files that were written longest ago, until the folder fits."""
    found: list[tuple[int, int, str]] = []
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                if entry.is_file(follow_symlinks=False):
                    status = entry.stat(follow_symlinks=False)
                    found.append((status.st_mtime_ns, status.st_size, entry.path))
    found.sort(reverse=True)
    total = 0
    for number, (_, size, path) in enumerate(found):
        total += size
        if total > most_bytes or number >= most_files:
            with suppress(OSError):
                os.unlink(path)
