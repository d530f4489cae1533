"""What the service of a host and the client of a mount send each other: plain data."""

from __future__ import annotations

from typing import NamedTuple

from monarch.fs._relay.peer import Peer


class HostFacts(NamedTuple):
    """What a host is, before anything is mounted there."""

    name: str
    peer: Peer
    # The machine and its mount namespace: hosts with the same place share mount points.
    place: str
    # Requirements of a mount that the host does not meet, each with the remedy.
    missing: list[str]


class OpenRequest(NamedTuple):
    """A mount that every host of a mesh is to have."""

    tree: str
    source: str
    # May contain `$SUBDIR`, for the key of each host.
    target: str
    # An encoded `Table`.
    table: bytes
    # The hosts in the order of their ranks, and the client.
    hosts: list[Peer]
    keys: list[str]
    client: Peer
    # Chunks that are fetched at once: "hot", "all" or "demand".
    fetch: str
    allow_other: bool
    read_timeout: float


class HostFailure(NamedTuple):
    """What went wrong on a host. `kind` is "busy" for a mount point that something else has."""

    kind: str
    reason: str
    errno: int


class HostMountStatus(NamedTuple):
    """A mount on one host of the mesh. Hosts of one machine have the same name, and differ by `rank`."""

    host: str
    rank: int
    # "live", "lost" (the host cannot be reached) or "failed".
    state: str
    generation: str
    # Bytes of the distinct chunks of the tree on the host, and of all of them. Chunks of zeros only are not counted.
    bytes_held: int
    bytes_total: int
    faults: int
    stale_paths: list[str]
    last_error: str
    # False: opens make no request. True: each open makes one, for the given reason.
    opens: bool
    opens_reason: str
    # The back end that serves the mount: "pyfuse3" or "device"; "" where it is not known.
    backend: str = ""


class MountStatus(NamedTuple):
    """A mount on all its hosts."""

    generation: str
    hosts: list[HostMountStatus]


class RefreshReport(NamedTuple):
    """What a refresh did: entries of the table that changed, bytes sent for it by the client, seconds."""

    generation: str
    changed: int
    bytes_sent: int
    seconds: float


class FetchReport(NamedTuple):
    """What came of bringing chunks to a host: those that are missing there, and why."""

    missing: list[bytes]
    # Files have changed after the index was made.
    stale: bool
    # The store has no room.
    unstored: bool
    reason: str


for _public in (HostMountStatus, MountStatus, RefreshReport):
    _public.__module__ = "monarch.fs"
