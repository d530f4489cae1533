"""The state folder of a mount: what a restarted server needs to answer with the same inode numbers.

| file | content | written |
|---|---|---|
| `table-<generation>` | the encoded table | when a generation is prepared |
| `inodes-<generation>-<serial>` | the inode number of each node, 8 bytes each | when the switch begins |
| `current` | generation, serial, next number, and the inodes of earlier generations that the kernel may refer to | at the commit |

`current` is replaced by a rename, which is the commit: before it a restarted server has the old generation, after it the new one, and
both have all files that they name. The state survives the death of the server and of the daemon, which is all that a mount survives, so
no write waits for the disk. A file that is cut short or altered is refused by its checksum: numbers that are wrong would show bytes of
one file under the name of another.

Inodes of earlier generations are written as of the commit and never updated: the kernel forgets some of them later, and a restarted server
keeps these needlessly. The alternative, a write for each forgotten inode, would cost more than the memory.
"""

from __future__ import annotations

import hashlib
import os
import struct
from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from monarch.fs._daemon.numbering import Numbering
from monarch.fs._tree.node import ID_SIZE, Kind, Node
from monarch.fs._tree.table import Table, TableError

_MAGIC = b"monarch tree state 1\n"
_SUM = 16
# Serial, next inode, count of the retired inodes, and the bytes of the generation's name.
_HEAD = struct.Struct("<QQQB")
# Inode, kind, mode, uid, gid, size, time, links, blocks, readable, bytes of target, bytes of chunks, count of attributes.
_NODE = struct.Struct("<QBHIIQqQQ?III")
_PAIR = struct.Struct("<II")


class StateError(ValueError):
    """The state folder of a mount is damaged: the text has the file and what is wrong with it. The tree has to be mounted anew."""


class SavedTree(NamedTuple):
    table: Table
    numbering: Numbering
    # Inodes of earlier generations.
    retired: dict[int, Node]
    serial: int


class TreeState:
    """Reads and writes one state folder; one process at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def save_table(self, table: Table) -> None:
        """Writes a table that is not there yet; the daemon may have written it under the same name."""
        path = self.folder / _table_name(table.generation)
        if not path.exists():
            self._replace(path.name, table.encode(compress=False))

    def save_numbers(self, generation: str, serial: int, numbering: Numbering) -> None:
        data = numbering.numbers.tobytes()
        self._replace(_numbers_name(generation, serial), _summed(data))

    def commit(self, generation: str, serial: int, following: int, retired: Mapping[int, Node]) -> None:
        """Makes a generation, of which table and numbers are written, the current one."""
        name = generation.encode()
        parts = [_HEAD.pack(serial, following, len(retired), len(name)), name]
        for inode, node in retired.items():
            parts += _packed(inode, node)
        self._replace("current", _MAGIC + _summed(b"".join(parts)))

    def sweep(self, generation: str, serial: int) -> None:
        """Removes the files of other generations. Not after a restart: the daemon may have written a table that is to be staged."""
        keep = {"current", _table_name(generation), _numbers_name(generation, serial)}
        for name in os.listdir(self.folder):
            if name not in keep and name.startswith(("table-", "inodes-", ".new-")):
                (self.folder / name).unlink(missing_ok=True)

    def load(self) -> SavedTree:
        """The current generation; `StateError` for a folder that has none or is damaged."""
        data = self._read("current")
        if not data.startswith(_MAGIC):
            raise StateError(f"{self.folder / 'current'}: not the state of a tree of this version")
        body = self._checked("current", data[len(_MAGIC) :])
        try:
            serial, following, count, length = _HEAD.unpack_from(body)
            offset = _HEAD.size + length
            generation = body[_HEAD.size : offset].decode("ascii")
            retired: dict[int, Node] = {}
            for _ in range(count):
                inode, node, offset = _unpacked(body, offset)
                retired[inode] = node
            if offset != len(body):
                raise ValueError(f"{len(body) - offset} bytes too many")
        except (struct.error, ValueError, IndexError) as error:
            raise StateError(f"{self.folder / 'current'}: {error}") from error
        try:
            table = Table.decode(self._read(_table_name(generation)))
        except TableError as error:
            raise StateError(f"{self.folder / _table_name(generation)}: {error}") from error
        name = _numbers_name(generation, serial)
        try:
            numbers = array("Q", self._checked(name, self._read(name)))
            if len(numbers) != len(table) or table.generation != generation:
                raise ValueError(f"{len(numbers)} numbers for {len(table)} nodes of generation {table.generation}")
            return SavedTree(table, Numbering(numbers, following), retired, serial)
        except ValueError as error:
            raise error if isinstance(error, StateError) else StateError(f"{self.folder / name}: {error}") from error

    def _read(self, name: str) -> bytes:
        try:
            return (self.folder / name).read_bytes()
        except FileNotFoundError as error:
            raise StateError(f"{self.folder / name}: no such file") from error

    def _checked(self, name: str, data: bytes) -> bytes:
        body = data[_SUM:]
        if hashlib.blake2b(body, digest_size=_SUM).digest() != data[:_SUM]:
            raise StateError(f"{self.folder / name}: the checksum does not match, {len(data)} bytes")
        return body

    def _replace(self, name: str, data: bytes) -> None:
        temporary = self.folder / f".new-{name}"
        temporary.write_bytes(data)
        os.replace(temporary, self.folder / name)


def _table_name(generation: str) -> str:
    return f"table-{generation}"


def _numbers_name(generation: str, serial: int) -> str:
    return f"inodes-{generation}-{serial}"


def _summed(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_SUM).digest() + data


def _packed(inode: int, node: Node) -> list[bytes]:
    parts = [
        _NODE.pack(
            inode,
            node.kind,
            node.mode,
            node.uid,
            node.gid,
            node.size,
            node.mtime_ns,
            node.nlink,
            node.blocks,
            node.readable,
            len(node.target),
            len(node.chunks),
            len(node.xattrs),
        ),
        node.target,
        node.chunks,
    ]
    for name, value in node.xattrs:
        parts += [_PAIR.pack(len(name), len(value)), name, value]
    return parts


def _unpacked(data: bytes, offset: int) -> tuple[int, Node, int]:
    inode, kind, mode, uid, gid, size, mtime, nlink, blocks, readable, target, chunks, pairs = _NODE.unpack_from(data, offset)
    offset += _NODE.size
    text, ids = data[offset : offset + target], data[offset + target : offset + target + chunks]
    offset += target + chunks
    xattrs: list[tuple[bytes, bytes]] = []
    for _ in range(pairs):
        name, value = _PAIR.unpack_from(data, offset)
        offset += _PAIR.size
        xattrs.append((data[offset : offset + name], data[offset + name : offset + name + value]))
        offset += name + value
    if offset > len(data) or chunks % ID_SIZE:
        raise ValueError(f"inode {inode} is cut short")
    return inode, Node(Kind(kind), mode, uid, gid, size, mtime, nlink, blocks, text, ids, readable, tuple(xattrs)), offset
