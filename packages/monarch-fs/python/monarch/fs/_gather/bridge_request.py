"""What the bridge of a gather mount is to show."""

from __future__ import annotations

from typing import NamedTuple

from monarch.fs._relay.peer import Peer

# The source of the mount in the mount table.
MOUNT_NAME = "monarch-gather"


class Point(NamedTuple):
    """A directory of one host in the view."""

    # Relative to the mount point, "" for the mount point itself.
    directory: str
    # The path on the host.
    root: str
    # The service of the host.
    peer: Peer


class Refusal(NamedTuple):
    """Why a mount could not begin. `busy`: something else is mounted there."""

    busy: bool
    reason: str
    errno: int


class BridgeRequest(NamedTuple):
    """A gather mount. `cache_bytes` bounds the contents that are kept, `read_timeout` is in seconds."""

    target: str
    points: list[Point]
    # Returns the service of a point, by its number, after the last one has ended.
    finder: Peer
    cache_bytes: int
    # Whether the only point is a file at the mount point itself.
    is_file: bool
    read_timeout: float
