"""Directories that are a mount point for others too: another mount namespace of this machine, or another machine.

Linux removes such a directory without an error, and takes the mount that others have there away with it. In its own namespace a mount
point is busy. Processes in other pid namespaces are not seen: a container that is alone in one is known by its file system only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

_ESCAPE = re.compile(rb"\\([0-7]{3})")
# File systems that other machines may have mounted; a FUSE file system may be one too.
_OF_MACHINES = ("9p", "afs", "beegfs", "ceph", "cifs", "gfs2", "gpfs", "lustre", "nfs", "nfs4", "ocfs2", "orangefs", "smb3", "virtiofs")


class _Row(NamedTuple):
    """A mount: its number and that of the mount it lies in, and which directory of which device is shown at `path`."""

    number: int
    parent: int
    device: bytes
    root: str
    path: str
    kind: str

    def place(self, path: str) -> tuple[bytes, str]:
        """The device, and the path on it, of a path that lies in this mount."""
        return self.device, os.path.normpath(os.path.join(self.root, os.path.relpath(path, self.path)))


def used_elsewhere(paths: Iterable[str]) -> set[str]:
    """Those of the directories that others may have as a mount point. Nothing is asked of what is mounted there."""
    own = _rows("self")
    places: dict[tuple[bytes, str], str] = {}
    used: set[str] = set()
    for path in paths:
        parent, name = os.path.split(os.path.abspath(path))
        real = os.path.join(os.path.realpath(parent), name)
        row = _row_of(own, real)
        if row is None:
            continue
        if row.kind in _OF_MACHINES or (row.kind.startswith("fuse.") and row.kind != "fuse.fuse-overlayfs"):
            used.add(path)
        else:
            places[row.place(real)] = path
    if places:
        used.update(places[place] for place in _points_of_others() if place in places)
    return used


def _row_of(rows: list[_Row], path: str) -> _Row | None:
    """The uppermost of the mounts that a path lies in; None in a root directory that is no mount point."""
    above = [(len(row.path), number) for number, row in enumerate(rows) if path.startswith(row.path.rstrip("/") + "/")]
    return rows[max(above)[1]] if above else None


def _points_of_others() -> Iterator[tuple[bytes, str]]:
    """The directories that are mount points in other mount namespaces."""
    seen = {os.readlink("/proc/self/ns/mnt")}
    for process in os.listdir("/proc"):
        if not process.isdigit():
            continue
        try:
            namespace = os.readlink(f"/proc/{process}/ns/mnt")
            if namespace in seen:
                continue
            rows = {row.number: row for row in _rows(process)}
        except OSError:
            # The process has ended, or belongs to another user.
            continue
        seen.add(namespace)
        for row in rows.values():
            above = rows.get(row.parent)
            if above is not None and above is not row:
                yield above.place(row.path)


def _rows(process: str) -> list[_Row]:
    with open(f"/proc/{process}/mountinfo", "rb") as file:
        return [_row(line) for line in file.read().splitlines()]


def _row(line: bytes) -> _Row:
    before, _, after = line.partition(b" - ")
    number, parent, device, root, path = before.split(b" ")[:5]
    return _Row(int(number), int(parent), device, _text(root), _text(path), _text(after.split(b" ")[0]))


def _text(field: bytes) -> str:
    return os.fsdecode(_ESCAPE.sub(lambda match: bytes([int(match[1], 8) & 0xFF]), field))
