"""The mounts of this mount namespace, from /proc/self/mountinfo: reading it asks no file system."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

_ESCAPE = re.compile(rb"\\([0-7]{3})")


class MountRow(NamedTuple):
    """One mount. Numbers are those of its device."""

    path: str
    kind: str
    source: str
    major: int
    minor: int

    def is_fuse(self) -> bool:
        return self.kind in ("fuse", "fuseblk") or self.kind.startswith(("fuse.", "fuseblk."))


def mount_rows() -> list[MountRow]:
    """All mounts, in the order of mounting; a later one at a path covers an earlier one."""
    with open("/proc/self/mountinfo", "rb") as file:
        return [row for line in file.read().split(b"\n") if (row := _row(line)) is not None]


def mount_row(target: str) -> MountRow | None:
    """The uppermost mount at exactly this path; None where there is none. Asks nothing of what is mounted at the path itself."""
    path = _resolved(target)
    return next((row for row in reversed(mount_rows()) if row.path == path), None)


def _resolved(target: str) -> str:
    """The target with the links of its directory resolved; a link at its end is followed unless something is mounted there."""
    path = os.path.abspath(target)
    for _ in range(40):
        parent, name = os.path.split(path)
        path = os.path.join(os.path.realpath(parent), name) if name else parent
        if any(row.path == path for row in mount_rows()):
            return path
        try:
            link = os.readlink(path)
        except OSError:
            return path
        path = os.path.normpath(os.path.join(os.path.dirname(path), link))
    return path


def _row(line: bytes) -> MountRow | None:
    before, separator, after = line.partition(b" - ")
    fields, rest = before.split(b" "), after.split(b" ")
    if not separator or len(fields) < 6 or len(rest) < 2:
        return None
    major, _, minor = fields[2].partition(b":")
    return MountRow(_text(fields[4]), _text(rest[0]), _text(rest[1]), int(major), int(minor))


def _text(field: bytes) -> str:
    return os.fsdecode(_ESCAPE.sub(lambda match: bytes([int(match[1], 8) & 0xFF]), field))
