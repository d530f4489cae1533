"""Where the store of this machine and user is, and how large it may be."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from monarch.extension import setting
from monarch.fs._store.store import Store

# Bytes that a store takes at most unless the setting names another number.
_MOST = 100 << 30


def store_folder(configured: str = "") -> Path:
    """The configured folder, or the one below `MONARCH_HOME` (`~/.monarch`), which hosts may share: each has its own there."""
    if configured:
        return Path(os.path.abspath(os.path.expanduser(configured)))
    home = os.path.abspath(os.path.expanduser(os.environ.get("MONARCH_HOME") or "~/.monarch"))
    machine = "".join(c if c.isalnum() or c in "-." else "_" for c in socket.gethostname()) or "host"
    return Path(home, "fs", f"store-{machine}-{os.geteuid()}")


def store_limit(folder: Path, configured: int = 0) -> int:
    """The configured bytes, or the smaller of 100 GiB and half of what is free, where what the store has counts as free.

    `ValueError` for a negative number.
    """
    if configured < 0:
        raise ValueError(f"fs_store_bytes: {configured} is negative")
    if configured:
        return configured
    os.makedirs(folder, mode=0o700, exist_ok=True)
    space = os.statvfs(folder)
    held = sum(entry.stat().st_size for entry in os.scandir(folder / "segments")) if (folder / "segments").is_dir() else 0
    return min(_MOST, (space.f_bavail * space.f_frsize + held) // 2)


def open_store() -> Store:
    """The store of this machine and user, by the settings `fs_store_dir` and `fs_store_bytes`."""
    folder = store_folder(str(setting("fs_store_dir") or ""))
    return Store(folder, store_limit(folder, int(setting("fs_store_bytes") or 0)))
