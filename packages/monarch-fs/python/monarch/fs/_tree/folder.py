"""The entries of one directory of a table, as columns: fixed records, names, and tails, each one run of bytes.

A record has the attributes, the bytes of its tail and of its name. The tail of a file is the identities of its chunks, of a symbolic link
its text; extended attributes follow. A folder of 10,000 entries is three `bytes` objects and no object for an entry; the ends of names and
tails are summed on first use. Folders are immutable, so tables of two generations share those that have not changed.

An entry of a hard link carries the number of its group, made of all its names: who changes a group changes the digest of every folder that
has a name of it.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable
from itertools import accumulate, chain
from struct import Struct
from typing import NamedTuple

from monarch.extension.directory_tree import blake3
from monarch.fs._tree.node import ID_SIZE, PIECE_BYTES, WHOLE_BYTES, Kind, Node

# Kind, flags, mode, uid, gid, nlink, size, mtime, blocks, group of a hard link.
ATTRIBUTES = Struct("<BBHIIIQqQQ")
# The attributes, the length of the tail in bytes, the length of the name in bytes.
RECORD = Struct("<BBHIIIQqQQIB")
LENGTHS = Struct(f"<{ATTRIBUTES.size}xIB")
_SIZES = Struct("<B15xQ24xIB")
assert RECORD.size == ATTRIBUTES.size + 5 == _SIZES.size
_XATTR = Struct("<BI")

UNREADABLE, HAS_XATTRS, LINKED = 1, 2, 4
_FLAGS = UNREADABLE | HAS_XATTRS | LINKED
_DIRECTORY, _FILE, _SYMLINK = int(Kind.DIRECTORY), int(Kind.FILE), int(Kind.SYMLINK)
_DIRECTORY_BYTE = bytes([_DIRECTORY])
# The longest name in Linux (NAME_MAX), and the longest text of a link (PATH_MAX).
NAME_BYTES = 255
_TARGET_BYTES = 4096
# The largest file in bytes, 4 TiB: the identities of its chunks are 128 MiB.
MAX_FILE_BYTES = 1 << 42
# The limits of the kernel for the value of one attribute, and for the names of all attributes of a file.
_XATTR_BYTES = 64 << 10
_XATTR_COUNT = 1 << 16


class TableError(ValueError):
    """The bytes are no table, no difference of tables, or one of other tables; the text names the place."""


class Item(NamedTuple):
    """An entry while a folder is made: name, packed attributes, tail."""

    name: bytes
    attributes: bytes
    tail: bytes


def chunk_count(size: int) -> int:
    """How many chunks a readable file of this size has."""
    if size <= WHOLE_BYTES:
        return 1 if size else 0
    return -(-size // PIECE_BYTES)


def link_group(paths: list[bytes]) -> int:
    """The number of a hard-linked file, by the sorted paths of all its names."""
    return int.from_bytes(blake3(b"\0".join(paths))[:8], "little") or 1


def pack_xattrs(xattrs: Iterable[tuple[bytes, bytes]]) -> bytes:
    return b"".join(_XATTR.pack(len(name), len(value)) + name + value for name, value in xattrs)


def pack_node(node: Node, group: int = 0) -> tuple[bytes, bytes]:
    """The attributes and the tail of a node; `group` is the number of its hard links. `TableError` for what a table cannot have."""
    flags = (0 if node.readable else UNREADABLE) | (HAS_XATTRS if node.xattrs else 0) | (LINKED if group else 0)
    tail = (node.target if node.kind == Kind.SYMLINK else node.chunks) + pack_xattrs(node.xattrs)
    numbers = (node.kind, flags, node.mode, node.uid, node.gid, node.nlink if group else 1, node.size, node.mtime_ns, node.blocks, group)
    attributes = ATTRIBUTES.pack(*numbers)
    check_entry(numbers, tail)
    return attributes, tail


def pack_file(mode: int, uid: int, gid: int, size: int, mtime_ns: int, blocks: int) -> bytes:
    """As `pack_node`, the attributes of a readable file with one name, which has all its chunks and no extended attributes."""
    if size > MAX_FILE_BYTES:
        raise TableError(f"a file of {size} bytes is too large")
    return ATTRIBUTES.pack(_FILE, 0, mode, uid, gid, 1, size, mtime_ns, blocks, 0)


def unpack_node(attributes: bytes, tail: bytes) -> Node:
    kind, flags, mode, uid, gid, nlink, size, mtime, blocks, _ = ATTRIBUTES.unpack(attributes)
    target = chunks = b""
    content = b""
    if kind != _DIRECTORY:
        content = tail[: _content_bytes(kind, flags, size)]
        if kind == _FILE:
            chunks = content
        else:
            target = content
    xattrs = _unpack_xattrs(tail, len(content)) if flags & HAS_XATTRS else ()
    return Node(Kind(kind), mode, uid, gid, size, mtime, nlink, blocks, target, chunks, not flags & UNREADABLE, xattrs)


def check_entry(numbers: tuple[int, ...], tail: bytes) -> None:
    """`TableError` for attributes and a tail that no file can have."""
    kind, flags, mode, _, _, nlink, size, _, _, group = numbers[:10]
    if not 1 <= kind <= _SYMLINK or flags & ~_FLAGS or mode > 0o7777:
        raise TableError(f"kind {kind}, flags {flags} or mode {mode} is malformed")
    if flags & LINKED:
        if kind == _DIRECTORY or nlink < 2 or not group:
            raise TableError("a hard link is malformed")
    elif nlink != 1 or group:
        raise TableError("an entry with a group is no hard link")
    if kind == _DIRECTORY:
        if size:
            raise TableError("a directory has a size")
        content = 0
    else:
        if size > MAX_FILE_BYTES and not flags & UNREADABLE:
            raise TableError(f"a file of {size} bytes is too large")
        content = _content_bytes(kind, flags, size)
        if kind == _SYMLINK and (flags & UNREADABLE or not 0 < size <= _TARGET_BYTES or b"\0" in tail[:size]):
            raise TableError("the text of a symbolic link is malformed")
    if flags & HAS_XATTRS:
        if not _unpack_xattrs(tail, content):
            raise TableError("an entry lacks its extended attributes")
    elif len(tail) != content:
        raise TableError(f"a tail of {len(tail)} bytes in place of {content}")


def _content_bytes(kind: int, flags: int, size: int) -> int:
    if kind == _SYMLINK:
        return size
    return 0 if flags & UNREADABLE else ID_SIZE * chunk_count(size)


def _unpack_xattrs(tail: bytes, at: int) -> tuple[tuple[bytes, bytes], ...]:
    found: list[tuple[bytes, bytes]] = []
    end = len(tail)
    while at < end:
        if at + _XATTR.size > end:
            raise TableError("an extended attribute is cut off")
        name_bytes, value_bytes = _XATTR.unpack_from(tail, at)
        at += _XATTR.size
        name, value = tail[at : at + name_bytes], tail[at + name_bytes : at + name_bytes + value_bytes]
        at += name_bytes + value_bytes
        malformed = at > end or value_bytes > _XATTR_BYTES or not name.startswith(b"user.") or b"\0" in name or len(found) >= _XATTR_COUNT
        if malformed or (found and found[-1][0] >= name):
            raise TableError("an extended attribute is malformed")
        found.append((name, value))
    if at != end:
        raise TableError("the content of an entry is cut off")
    return tuple(found)


class Folder:
    """The entries of a directory, sorted by name; immutable."""

    __slots__ = ("_large", "_small", "_digest", "_name_ends", "_tail_ends", "count", "names", "records", "subfolders", "tails")

    def __init__(self, records: bytes, names: bytes, tails: bytes) -> None:
        self.records, self.names, self.tails = records, names, tails
        self.count = len(records) // RECORD.size
        kinds = records[:: RECORD.size]
        # The places of the directories.
        self.subfolders: tuple[int, ...] = ()
        if _DIRECTORY_BYTE in kinds:
            self.subfolders = tuple([place for place, kind in enumerate(kinds) if kind == _DIRECTORY])
        self._name_ends: array[int] | None = None
        self._tail_ends: array[int] | None = None
        self._digest: bytes | None = None
        self._small: tuple[bytes, ...] | None = None
        self._large: tuple[bytes, ...] | None = None

    @property
    def digest(self) -> bytes:
        """Of the entries, not of what lies in the directories among them."""
        found = self._digest
        if found is None:
            found = self._digest = blake3(b"".join((b"f", self.count.to_bytes(4, "little"), self.records, self.names, self.tails)))
        return found

    def _sum(self) -> tuple[array[int], array[int]]:
        tails, names = zip(*LENGTHS.iter_unpack(self.records), strict=True) if self.count else ((), ())
        self._tail_ends, self._name_ends = array("Q", accumulate(tails, initial=0)), array("I", accumulate(names, initial=0))
        return self._tail_ends, self._name_ends

    def name(self, place: int) -> bytes:
        ends = self._name_ends or self._sum()[1]
        return self.names[ends[place] : ends[place + 1]]

    def all_names(self) -> list[bytes]:
        ends, names = self._name_ends or self._sum()[1], self.names
        return [names[ends[place] : ends[place + 1]] for place in range(self.count)]

    def tail(self, place: int) -> bytes:
        ends = self._tail_ends or self._sum()[0]
        return self.tails[ends[place] : ends[place + 1]]

    def attributes(self, place: int) -> bytes:
        at = place * RECORD.size
        return self.records[at : at + ATTRIBUTES.size]

    def item(self, place: int) -> Item:
        return Item(self.name(place), self.attributes(place), self.tail(place))

    def node(self, place: int) -> Node:
        return unpack_node(self.attributes(place), self.tail(place))

    def find(self, name: bytes) -> int | None:
        """The place of a name."""
        ends, names = self._name_ends or self._sum()[1], self.names
        low, high = 0, self.count
        # `bisect_left` with a key calls a Python function for each step.
        while low < high:
            middle = (low + high) >> 1
            if names[ends[middle] : ends[middle + 1]] < name:
                low = middle + 1
            else:
                high = middle
        return low if low < self.count and self.name(low) == name else None

    def all_numbers(self) -> Iterable[tuple[int, ...]]:
        """Of each entry what `ATTRIBUTES` has, and further numbers."""
        return RECORD.iter_unpack(self.records)

    def linked(self) -> list[int]:
        """The places of hard links."""
        flags = self.records[1 :: RECORD.size]
        return [place for place, flag in enumerate(flags) if flag & LINKED] if flags and max(flags) >= LINKED else []

    def content_bytes(self) -> int:
        """The sizes of all entries but directories, in bytes: hard links as often as they are here."""
        return sum(size for _, size, _, _ in _SIZES.iter_unpack(self.records))

    def chunk_sizes(self) -> Iterable[tuple[bytes, int]]:
        """The identities of the chunks of all files, `ZERO_ID` included, each with its bytes."""
        at = 0
        tails = self.tails
        for (kind, size, tail, _), flag in zip(_SIZES.iter_unpack(self.records), self.records[1 :: RECORD.size], strict=True):
            if kind == _FILE and tail and not flag & UNREADABLE:
                step = size if size <= WHOLE_BYTES else PIECE_BYTES
                for number in range(chunk_count(size)):
                    start = at + number * ID_SIZE
                    yield tails[start : start + ID_SIZE], min(step, size - number * step)
            at += tail

    def chunk_places(self, ids: Collection[bytes]) -> Iterable[tuple[int, int, bytes]]:
        """Where chunks of these are: place of the entry, offset in its file, identity."""
        at, tails = 0, self.tails
        flags = self.records[1 :: RECORD.size]
        for place, (kind, size, tail, _) in enumerate(_SIZES.iter_unpack(self.records)):
            if kind == _FILE and tail and not flags[place] & UNREADABLE:
                for number in range(min(tail // ID_SIZE, chunk_count(size))):
                    start = at + number * ID_SIZE
                    id = tails[start : start + ID_SIZE]
                    if id in ids:
                        yield place, number * PIECE_BYTES, id
            at += tail

    def large_chunks(self) -> tuple[bytes, ...]:
        """The identities of the pieces of files above `WHOLE_BYTES`, `ZERO_ID` included; kept."""
        if self._large is None:
            at, found = 0, list[bytes]()
            for (kind, size, tail, _), flag in zip(_SIZES.iter_unpack(self.records), self.records[1 :: RECORD.size], strict=True):
                if size > WHOLE_BYTES and kind == _FILE and not flag & UNREADABLE:
                    end = at + min(tail, chunk_count(size) * ID_SIZE)
                    found += [self.tails[start : start + ID_SIZE] for start in range(at, end, ID_SIZE)]
                at += tail
            self._large = tuple(found)
        return self._large

    def small_chunks(self) -> tuple[bytes, ...]:
        """The identities of the files of at most `WHOLE_BYTES`, `ZERO_ID` included; kept."""
        if self._small is None:
            at, found = 0, list[bytes]()
            for (kind, size, tail, _), flag in zip(_SIZES.iter_unpack(self.records), self.records[1 :: RECORD.size], strict=True):
                if kind == _FILE and 0 < size <= WHOLE_BYTES and not flag & UNREADABLE:
                    found.append(self.tails[at : at + ID_SIZE])
                at += tail
            self._small = tuple(found)
        return self._small

    def check(self) -> None:
        """`TableError` unless each entry is well-formed and the names are sorted."""
        names, tails = self.names, self.tails
        name_at = tail_at = 0
        last = b""
        for numbers in RECORD.iter_unpack(self.records):
            tail_end, name_end = tail_at + numbers[10], name_at + numbers[11]
            name = names[name_at:name_end]
            if name <= last or name in (b".", b".."):
                raise TableError(f"the name {name!r} is malformed, or not sorted")
            # The common case first: a readable file of one chunk.
            if (
                numbers[:2] != (_FILE, 0)
                or not 0 < numbers[6] <= WHOLE_BYTES
                or numbers[10] != ID_SIZE
                or numbers[2] > 0o7777
                or numbers[5] != 1
                or numbers[9]
            ):
                check_entry(numbers, tails[tail_at:tail_end])
            last, name_at, tail_at = name, name_end, tail_end
        if b"/" in names or b"\0" in names:
            raise TableError("a name has a slash or a null byte")
        if name_at != len(names) or tail_at != len(tails):
            raise TableError("the columns of a directory do not fit each other")


EMPTY = Folder(b"", b"", b"")


def folder_of(items: Iterable[Item]) -> Folder:
    """The folder of items that are sorted by name and well-formed."""
    found = list(items)
    records = [attributes + _lengths(len(tail), len(name)) for name, attributes, tail in found]
    return Folder(b"".join(records), b"".join([item[0] for item in found]), b"".join([item[2] for item in found]))


_lengths = Struct("<IB").pack


def cut_folders(counts: Iterable[int], records: bytes, names: bytes, tails: bytes) -> list[Folder]:
    """The folders whose columns lie one after another; checked. `TableError` if they do not fit."""
    folders: list[Folder] = []
    at = name_at = tail_at = 0
    for count in counts:
        end = at + count * RECORD.size
        own = records[at:end]
        lengths = list(chain.from_iterable(LENGTHS.iter_unpack(own[: len(own) - len(own) % RECORD.size])))
        tail_end, name_end = tail_at + sum(lengths[::2]), name_at + sum(lengths[1::2])
        if end > len(records) or name_end > len(names) or tail_end > len(tails):
            raise TableError("a directory is cut off")
        folder = Folder(own, names[name_at:name_end], tails[tail_at:tail_end])
        folder.check()
        folders.append(folder)
        at, name_at, tail_at = end, name_end, tail_end
    if at != len(records) or name_at != len(names) or tail_at != len(tails):
        raise TableError("bytes follow the last directory")
    return folders
