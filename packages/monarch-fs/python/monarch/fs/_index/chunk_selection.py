"""The chunks of a table that patterns select, and their sizes."""

from __future__ import annotations

import errno
from collections.abc import Sequence

from monarch.fs._index.pattern import Exclusion
from monarch.fs._tree.node import ZERO_ID, Kind
from monarch.fs._tree.table import Table


def chunks_of(table: Table, patterns: Sequence[Exclusion], source: str) -> list[bytes]:
    """The chunks of the files that match, or that lie in a directory that does; `FileNotFoundError` for a pattern without a match."""
    found: dict[bytes, None] = {}
    used: set[Exclusion] = set()
    inside: bytes | None = None
    for path, at in table.walk():
        if not path:
            continue
        node = table.node(at)
        is_directory = node.kind is Kind.DIRECTORY
        matching = [pattern for pattern in patterns if pattern.matches(path, path.rpartition(b"/")[2], is_directory)]
        used.update(matching)
        within = inside is not None and path.startswith(inside)
        if not within:
            inside = path + b"/" if matching and is_directory else None
        if matching or within:
            found.update((node.chunk(number), None) for number in range(node.chunk_count()))
    for pattern in patterns:
        if pattern not in used:
            raise FileNotFoundError(errno.ENOENT, "no path in the tree matches the pattern", f"{pattern.patterns[0]} in {source}")
    found.pop(ZERO_ID, None)
    return list(found)


def bytes_of(table: Table, ids: set[bytes]) -> int:
    """The bytes of these chunks of a table; each counts once."""
    total = 0
    for _, at in table.walk():
        node = table.node(at)
        for number in range(node.chunk_count()):
            id = node.chunk(number)
            if id in ids:
                ids = ids - {id}
                total += min(node.piece(), node.size - number * node.piece())
    return total
