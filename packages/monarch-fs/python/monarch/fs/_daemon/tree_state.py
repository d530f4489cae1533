"""The state folder of a mount: what a restarted server needs to answer with the same inode numbers.

| file | content | written |
|---|---|---|
| `table-<generation>` | the encoded table | when a generation is prepared |
| `delta-<generation>` | in its place the earlier generation, and what changes its table into this one | the same, for a small change |
| `inodes-<generation>-<serial>` | the inode number of each node, 8 bytes each | when the switch begins |
| `current` | generation, serial, next number, and the inodes of earlier generations that the kernel may refer to | at the commit |

`current` is replaced by a rename, which is the commit: before it a restarted server has the old generation, after it the new one, and
both have all files that they name. The state survives the death of the server and of the daemon, which is all that a mount survives, so
no write waits for the disk. A whole table is 3 MB for 30,000 files, so a few small changes follow each other before the next one is
written. A file that is cut short or altered is refused by its checksum: numbers that are wrong would show bytes of one file under the
name of another.

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
from monarch.fs._tree.difference import patched
from monarch.fs._tree.node import ID_SIZE, Kind, Node
from monarch.fs._tree.table import Table, TableError

_MAGIC = b"monarch tree state 1\n"
_SUM = 16
# Serial, next inode, number of retired inodes, length of the name of the generation in bytes.
_HEAD = struct.Struct("<QQQB")
# Inode, kind, mode, uid, gid, size, time, links, blocks, readable, bytes of target, bytes of chunks, number of attributes.
_NODE = struct.Struct("<QBHIIQqQQ?III")
_PAIR = struct.Struct("<II")
# The most consecutive changes of tables, and the most bytes of one.
_MOST_DELTAS, _DELTA_BYTES = 16, 64 << 10
# The most bytes of the name of a generation.
_NAME_BYTES = 64


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
        # The earlier generation of each generation that is stored as a difference.
        self._bases: dict[str, str] = {}
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def save_table(self, table: Table, delta: tuple[str, bytes] | None = None) -> None:
        """Writes a table that is not there yet: as the generation and the difference that it was made of, where that is small."""
        generation = table.generation
        if self._chain(generation):
            return
        if delta is not None and len(delta[1]) <= _DELTA_BYTES and 0 < len(self._chain(delta[0])) <= _MOST_DELTAS:
            self._replace(_delta_name(generation), delta[0].encode() + delta[1])
            self._bases[generation] = delta[0]
        else:
            self._replace(_table_name(generation), table.encode(compress=False))

    def _chain(self, generation: str) -> list[str]:
        """The files that a table is made of, the whole table last; empty where one is not there."""
        found: list[str] = []
        while len(found) <= _MOST_DELTAS:
            if (self.folder / _table_name(generation)).exists():
                return [*found, _table_name(generation)]
            base = self._bases.get(generation)
            if base is None or not (self.folder / _delta_name(generation)).exists():
                break
            found.append(_delta_name(generation))
            generation = base
        return []

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
        """Removes the files of other generations."""
        keep = {"current", _numbers_name(generation, serial), *self._chain(generation)}
        for name in os.listdir(self.folder):
            if name not in keep and name.startswith(("table-", "delta-", "inodes-", ".new-")):
                (self.folder / name).unlink(missing_ok=True)
                self._bases.pop(name.removeprefix("delta-"), None)

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
        table = self._table(generation)
        name = _numbers_name(generation, serial)
        try:
            numbers = array("Q", self._checked(name, self._read(name)))
            if len(numbers) != len(table) or table.generation != generation:
                raise ValueError(f"{len(numbers)} numbers for {len(table)} nodes of generation {table.generation}")
            return SavedTree(table, Numbering(numbers, following), retired, serial)
        except ValueError as error:
            raise error if isinstance(error, StateError) else StateError(f"{self.folder / name}: {error}") from error

    def _table(self, generation: str) -> Table:
        deltas: list[tuple[str, bytes]] = []
        while not (self.folder / _table_name(generation)).exists() and (self.folder / _delta_name(generation)).exists():
            if len(deltas) >= _MOST_DELTAS:
                raise StateError(f"{self.folder / _delta_name(generation)}: more than {_MOST_DELTAS} differences")
            data = self._read(_delta_name(generation))
            deltas.append((generation, data[_NAME_BYTES:]))
            base = data[:_NAME_BYTES].decode("ascii", "replace")
            self._bases[generation], generation = base, base
        name = _table_name(generation)
        try:
            table = Table.decode(self._read(name))
            for made, delta in reversed(deltas):
                name = _delta_name(made)
                table = patched(table, delta)
        except TableError as error:
            raise StateError(f"{self.folder / name}: {error}") from error
        return table

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


def _delta_name(generation: str) -> str:
    return f"delta-{generation}"


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
