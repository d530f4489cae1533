"""What a backend leaves on this machine: processes of the suite's folder, and places where a secret can be read."""

from __future__ import annotations

import contextlib
import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# As long as the secret of a job.
_SECRET_BYTES = 32


def processes(folder: str) -> dict[int, str]:
    """Other processes that were started with a `MONARCH_HOME` below the folder: pid and command."""
    mark = f"MONARCH_HOME={folder}/".encode()
    found: dict[int, str] = {}
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with contextlib.suppress(OSError):
            if pid != os.getpid() and mark in _of_process(pid, "environ"):
                found[pid] = _of_process(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace").strip()[:200]
    return {pid: command for pid, command in found.items() if command}  # a zombie has none


def secrets(folder: str) -> list[bytes]:
    """The contents of files below the folder that may be secrets, by their length."""
    found: list[bytes] = []
    for path, size in _files(folder):
        if size == _SECRET_BYTES:
            with open(path, "rb") as f:
                found.append(f.read())
    return found


def open_files(folder: str, secret: bytes) -> list[str]:
    """Files below the folder that have the secret, and that other users can read as far as the file's own mode goes."""
    found: list[str] = []
    for path, _ in _files(folder):
        with contextlib.suppress(OSError), open(path, "rb") as f:
            if os.fstat(f.fileno()).st_mode & 0o044 and _shows(f.read(), secret):
                found.append(path)
    return found


def in_arguments_or_environment(secret: bytes) -> int | None:
    """A process with the secret in its arguments or its environment."""
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        for file in ("cmdline", "environ"):
            with contextlib.suppress(OSError):
                if _shows(_of_process(pid, file), secret):
                    return pid
    return None


def _shows(data: bytes, secret: bytes) -> bool:
    return secret in data or secret.hex().encode() in data


def _files(folder: str) -> Iterator[tuple[str, int]]:
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                found = os.lstat(os.path.join(place, name))
                if stat.S_ISREG(found.st_mode):
                    yield os.path.join(place, name), found.st_size


def _of_process(pid: int, file: str) -> bytes:
    with open(f"/proc/{pid}/{file}", "rb") as f:
        return f.read()
