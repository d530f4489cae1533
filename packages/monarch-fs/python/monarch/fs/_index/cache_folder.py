"""Files below `MONARCH_HOME` that only save time: written whole, verified when they are read, bounded in number and bytes."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from monarch.extension.directory_tree import blake3
from monarch.fs._home import home

_DIGEST = 32


def default_folder() -> Path:
    """Where indexes are kept: `fs/index` below `MONARCH_HOME`, by default `~/.monarch`.

    A user without a home directory keeps none: nothing can be made below the path that is returned then.
    """
    return (home() or Path(os.devnull)) / "fs" / "index"


def load(path: Path, most: int) -> bytes | None:
    """The content of a file; None if it is not there, damaged, another user's, or has more than `most` bytes."""
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            if found.st_uid != os.geteuid() or not _DIGEST <= found.st_size <= most:
                return None
            digest, body = file.read(_DIGEST), file.read()
    except OSError:
        return None
    return body if blake3(body) == digest else None


def save(path: Path, body: bytes) -> bool:
    """Replaces a file; False where that cannot be done, which costs time and nothing else."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(0o700, parents=True, exist_ok=True)
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            with open(fd, "wb") as file:
                file.write(blake3(body))
                file.write(body)
            os.rename(temporary, path)
        except OSError:
            os.unlink(temporary)
            return False
    except OSError:
        return False
    return True


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
