"""The pins of a store: files with identities of chunks that are not to be removed.

The process that pins holds a lock on its file. A file that is not locked is of a process that has ended: it is void, and the first process
that finds it removes it. So nothing has to be cleaned up after a process that is killed.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Collection
from contextlib import suppress

from monarch.fs._store.segment import OpenFile
from monarch.fs._tree.node import ID_SIZE


class Pins:
    """The pins of this process, by name, and what all processes have pinned. The caller holds the lock of the store."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._own: dict[str, tuple[str, OpenFile, frozenset[bytes]]] = {}

    def pin(self, name: str, ids: Collection[bytes]) -> None:
        """Pins these in the place of what the name had."""
        path = f"{self._folder}/{os.getpid()}-{secrets.token_hex(8)}"
        file = OpenFile(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            fcntl.flock(file.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            raw = memoryview(b"".join(ids))
            while raw:
                raw = raw[os.write(file.fd, raw) :]
        except BaseException:
            with suppress(OSError):
                os.unlink(path)
            raise
        self.unpin(name)
        self._own[name] = path, file, frozenset(ids)

    def unpin(self, name: str) -> None:
        """Ends a pin of this process; one that is not there is none."""
        found = self._own.pop(name, None)
        if found is not None:
            with suppress(OSError):
                os.unlink(found[0])

    def pinned(self) -> set[bytes]:
        """The identities that a live process has pinned."""
        own = {os.path.basename(path): ids for path, _, ids in self._own.values()}
        found: set[bytes] = set()
        for name in os.listdir(self._folder):
            if name in own:
                found |= own[name]
                continue
            path = f"{self._folder}/{name}"
            with suppress(FileNotFoundError):
                file = OpenFile(path, os.O_RDONLY)
                try:
                    fcntl.flock(file.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    raw = _content(file.fd)
                    found.update(raw[at : at + ID_SIZE] for at in range(0, len(raw), ID_SIZE))
                else:
                    os.unlink(path)
        return found

    def close(self) -> None:
        for name in list(self._own):
            self.unpin(name)


def _content(fd: int) -> bytes:
    parts: list[bytes] = []
    at = 0
    while part := os.pread(fd, 1 << 24, at):
        parts.append(part)
        at += len(part)
    return b"".join(parts)
