"""What the bridge of a gather mount is to show."""

from __future__ import annotations

from typing import NamedTuple

from monarch.actor import HostMesh


class Point(NamedTuple):
    """A directory of one host in the view."""

    # Relative to the mount point, "" for the mount point itself.
    directory: str
    # The path on the host.
    root: str
    # Which mesh of the request, and which of its hosts by rank.
    mesh: int
    rank: int


class BridgeRequest(NamedTuple):
    """A gather mount. `cache_bytes` bounds the contents that are kept, `read_timeout` is in seconds."""

    target: str
    meshes: list[HostMesh]
    points: list[Point]
    cache_bytes: int
    read_timeout: float
