"""Directories of a mirrored tree as bytes, each identified by its digest. A directory contains the digests of its entries: equal trees have
equal digests.

An entry is its kind, its name, NUL, then: for a file (`f`, or `x` with the executable bit) size and digest of its content, for a directory
(`d`) the digest of its own bytes, for a symbolic link (`l`) its target and NUL. Entries are sorted by name. A receiver checks each entry:
names are single components, links stay within the tree.
"""

from __future__ import annotations

import posixpath

from monarch._core._native.files import blake3

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NamedTuple
else:
    from collections import namedtuple

# Bytes of the digest of a content or directory: long enough to exclude collisions, short because a change sends one for every neighbour.
DIGEST = 20
FILE, EXECUTABLE, DIRECTORY, LINK = b"f", b"x", b"d", b"l"

if TYPE_CHECKING:

    class Entry(NamedTuple):
        """One entry of a directory; `digest` of a link is its target, `size` counts for files only."""

        kind: bytes
        name: bytes
        size: int
        digest: bytes
else:
    Entry = namedtuple("Entry", ("kind", "name", "size", "digest"))


class MalformedTree(ValueError):
    """Received data would not form a tree, or would leave it."""


def digest_of(data: bytes | memoryview) -> bytes:
    """The truncated BLAKE3 digest."""
    return blake3(data)[:DIGEST]


def pack_node(entries: list[Entry]) -> bytes:
    parts: list[bytes] = []
    for kind, name, size, digest in sorted(entries, key=lambda e: e.name):
        parts.append(kind + name + b"\0")
        if kind == LINK:
            parts.append(digest + b"\0")
        elif kind == DIRECTORY:
            parts.append(digest)
        else:
            parts.append(size.to_bytes(8, "little") + digest)
    return b"".join(parts)


def parse_node(node: bytes) -> list[Entry]:
    """The entries of a directory; `MalformedTree` for malformed bytes or an invalid name."""
    found: list[Entry] = []
    at, end, before = 0, len(node), b""
    while at < end:
        kind = node[at : at + 1]
        stop = node.find(b"\0", at)
        name = node[at + 1 : stop]
        if stop < 0 or not name or name in (b".", b"..") or b"/" in name or (found and name <= before):
            raise MalformedTree(f"invalid name in a directory: {name!r}")
        before = name
        at = stop + 1
        size = 0
        if kind == LINK:
            stop = node.find(b"\0", at)
            if stop <= at:
                raise MalformedTree(f"symbolic link without a target: {name!r}")
            digest = node[at:stop]
            at = stop + 1
        else:
            if kind != DIRECTORY:
                if kind not in (FILE, EXECUTABLE):
                    raise MalformedTree(f"unknown kind of entry: {kind!r}")
                size = int.from_bytes(node[at : at + 8], "little")
                at += 8
            digest = node[at : at + DIGEST]
            at += DIGEST
            if len(digest) < DIGEST:
                raise MalformedTree(f"a directory ends in the middle of {name!r}")
        found.append(Entry(kind, name, size, digest))
    return found


def stays_within(directory: bytes, target: bytes) -> bool:
    """Whether the target of a link in a directory, relative to the top of the tree, is within the tree, by its text."""
    if target.startswith(b"/"):
        return False
    normal = posixpath.normpath(posixpath.join(directory, target))
    return normal != b".." and not normal.startswith(b"../")
