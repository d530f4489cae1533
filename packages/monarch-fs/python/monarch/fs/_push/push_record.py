"""What a push has written, so that the next one does not read it again: for each file its attributes then, and the content it got.

A file whose inode, size, mtime and ctime are those of the record has the content of the record: the kernel changes the ctime with each
write and with each change of the attributes. Without a record, or after such a change, contents are compared. The record is a file on
the host, beside the store and not in the target; it is replaced in one step, and a malformed one counts as none. A record that no push
has written for 30 days is removed: targets of a job's workspace have a path that never comes again.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any, NamedTuple, cast

from monarch.extension.directory_tree import blake3
from monarch.fs._push.relocation import Relocation

_VERSION = 1
_NAME_BYTES = 16
# A larger file is not a record of a push: a million files have about 200 MB.
_LIMIT = 512 << 20
_LIFE_SECONDS = 30 * 24 * 3600


class Written(NamedTuple):
    """A file of the target, as a push left it."""

    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int
    # The content: a digest of the chunks and attributes of the node.
    content: str
    # Whether the prefix of an environment was replaced in it, and whether it contains one that could not be replaced.
    relocated: bool = False
    left: bool = False

    @classmethod
    def of(cls, found: os.stat_result, content: str, relocated: bool = False, left: bool = False) -> Written:
        return cls(found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns, content, relocated, left)

    def holds(self, found: os.stat_result) -> bool:
        """Whether the file has not been touched since."""
        return self[:4] == (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


class PushRecord:
    """The files of one target that have been written for one relocation."""

    def __init__(self, path: Path | None, target: str, relocation: Relocation | None) -> None:
        self._path = path
        # A record of another place or another prefix has nothing to compare with.
        self._header = [_VERSION, target, None if relocation is None else _identity(relocation)]
        self.files: dict[bytes, Written] = {}

    @staticmethod
    def place(state: Path, target: str) -> Path:
        """The file of the record of a target, below the state folder of pushes."""
        return state / blake3(os.fsencode(target))[:_NAME_BYTES].hex()

    def load(self) -> None:
        """Reads what the last push has left, if it was one like this."""
        if self._path is None:
            return
        try:
            if self._path.stat().st_size > _LIMIT:
                return
            found = cast("dict[str, Any]", json.loads(self._path.read_bytes()))
            if found["header"] == self._header:
                self.files = {name.encode("utf-8", "surrogateescape"): _written(values) for name, values in found["files"].items()}
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            self.files = {}

    def save(self) -> None:
        """Replaces the file. A failure is none of the push: without a record the next one compares contents."""
        if self._path is None:
            return
        files = {name.decode("utf-8", "surrogateescape"): list(written) for name, written in self.files.items()}
        text = json.dumps({"header": self._header, "files": files}, separators=(",", ":"))
        temporary = self._path.with_name(f"{self._path.name}.{os.getpid()}.tmp")
        try:
            self._path.parent.mkdir(0o700, parents=True, exist_ok=True)
            with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:
                file.write(text)
            os.replace(temporary, self._path)
            self._remove_old(self._path.parent)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(temporary)

    def _remove_old(self, state: Path) -> None:
        before = time.time() - _LIFE_SECONDS
        with os.scandir(state) as found:
            for entry in found:
                with contextlib.suppress(OSError):
                    if entry.stat(follow_symlinks=False).st_mtime < before:
                        os.unlink(entry.path)


def _identity(relocation: Relocation) -> str:
    rooms = b"".join(b"%s\0%d\0" % item for item in sorted(relocation.rooms.items()))
    return blake3(b"\0".join((*relocation.old, relocation.new)) + b"\0\0" + rooms).hex()


def _written(values: Any) -> Written:
    inode, size, mtime_ns, ctime_ns, content, relocated, left = values
    if not all(isinstance(number, int) for number in (inode, size, mtime_ns, ctime_ns)) or not isinstance(content, str):
        raise ValueError("malformed record")
    return Written(inode, size, mtime_ns, ctime_ns, content, bool(relocated), bool(left))
