"""The attributes of a file of a host, as they travel to the client: a tuple of plain numbers."""

from __future__ import annotations

import os
import stat
from typing import NamedTuple


class RemoteAttr(NamedTuple):
    """What a host states of one name; names with an equal `identity` have the same file."""

    # Type bits and permission bits.
    mode: int
    size: int
    mtime_ns: int
    ctime_ns: int
    # Units of 512 bytes.
    blocks: int
    device: int
    number: int

    @property
    def identity(self) -> tuple[int, int]:
        return self.device, self.number

    @property
    def version(self) -> tuple[int, int, int]:
        """Differs where the content may differ."""
        return self.size, self.mtime_ns, self.ctime_ns

    @property
    def is_directory(self) -> bool:
        return stat.S_ISDIR(self.mode)

    @property
    def is_shown(self) -> bool:
        """Sockets, pipes and devices have no content that can be read from afar, and are left out."""
        return stat.S_ISDIR(self.mode) or stat.S_ISREG(self.mode) or stat.S_ISLNK(self.mode)


def remote_attr(found: os.stat_result) -> RemoteAttr:
    return RemoteAttr(found.st_mode, found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_blocks, found.st_dev, found.st_ino)
