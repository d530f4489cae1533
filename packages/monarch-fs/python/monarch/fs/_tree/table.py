"""The inode table of a tree: every name, attribute and content identity of one generation, immutable.

A table is a list of folders in breadth-first order: the folders of the directories in a folder follow each other. Names are numbered in
the same order, and a node has the number of its first name; a table of a million nodes is three runs of bytes for each directory, and a
`Node` is made when it is asked for. The digest of a directory covers its entries and the digests of the directories in it (a Merkle tree),
so equal subtrees are found by one comparison. Two generations share the folders that are the same.

On the wire the columns of all folders lie one after another, compressed: about 60 bytes a file, of which 32 are the identity of its
content. The reader of the wire format checks every record and never needs more than 64 times the bytes that it got.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import accumulate
from struct import Struct

from monarch.extension.directory_tree import blake3
from monarch.fs._tree.folder import ATTRIBUTES, RECORD, Folder, TableError, check_entry, cut_folders, unpack_node
from monarch.fs._tree.node import ZERO_ID, Kind, Node
from monarch.fs._tree.packed import pack, unpack

__all__ = ["Table", "TableError"]

_MAGIC = b"MFT1"
# Length of the tail of the root in bytes, number of folders, length of all names in bytes.
_HEAD = Struct("<III")
# The most identities that are searched one by one.
_FEW = 64
# The most names of a table.
MAX_ENTRIES = 1 << 26


class Table:
    """What a tree shows; `table.node(0)` is its root. Threads may share one.

    An index is below `len(table)` and belongs to this table alone: other generations number their nodes differently.
    """

    __slots__ = ("_aliases", "_bases", "_chunks", "_digests", "_firsts", "_nodes", "_total", "folders", "generation", "root")

    def __init__(self, root: tuple[bytes, bytes], folders: Sequence[Folder]) -> None:
        """`root`: attributes and tail of the top; `folders` in breadth-first order. `TableError` if they make no tree."""
        self.root = root
        self.folders = folders
        # For each folder the place of its first entry among all, and the number of the first folder in it.
        self._bases = array("Q", accumulate((folder.count for folder in folders), initial=1))
        self._firsts = array("Q", accumulate((len(folder.subfolders) for folder in folders), initial=1))
        if not folders or self._firsts[-1] != len(folders):
            raise TableError(f"{len(folders)} directories in place of {self._firsts[-1]}")
        if any(first <= number for number, first in enumerate(self._firsts[:-1])):
            raise TableError("the directories make no tree")
        if self._bases[-1] > MAX_ENTRIES:
            raise TableError(f"{self._bases[-1]} names are too many")
        self._digests = self._sum_up()
        # None if each name has its own node, else the node of each place and the place of each node.
        self._aliases: tuple[array[int], array[int]] | None = self._link()
        self._nodes = len(self._aliases[1]) if self._aliases else self._bases[-1]
        self._total: int | None = None
        self._chunks: set[bytes] | None = None
        self.generation: str = self.digest(0).hex()

    def _sum_up(self) -> list[bytes]:
        digests = [folder.digest for folder in self.folders]
        for number in range(len(digests) - 1, -1, -1):
            first, end = self._firsts[number], self._firsts[number + 1]
            if end > first:
                digests[number] = blake3(b"".join((b"d", digests[number], *digests[first:end])))
        return digests

    def _link(self) -> tuple[array[int], array[int]] | None:
        """Finds the names of each hard-linked file; `TableError` if they differ, or are not as many as the file has."""
        groups: dict[bytes, list[int]] = {}
        for base, folder in zip(self._bases, self.folders, strict=False):
            for place in folder.linked():
                groups.setdefault(folder.attributes(place) + folder.tail(place), []).append(base + place)
        if not groups:
            return None
        numbers: set[int] = set()
        node_of_place = array("Q", range(self._bases[-1]))
        later: set[int] = set()
        for key, places in groups.items():
            nlink, group = ATTRIBUTES.unpack_from(key)[5::4]
            if nlink != len(places) or group in numbers:
                raise TableError(f"a file with {nlink} names has {len(places)}")
            numbers.add(group)
            later.update(places[1:])
        place_of_node = array("Q", (place for place in range(self._bases[-1]) if place not in later))
        for node, place in enumerate(place_of_node):
            node_of_place[place] = node
        for places in groups.values():
            for place in places[1:]:
                node_of_place[place] = node_of_place[places[0]]
        return node_of_place, place_of_node

    def __len__(self) -> int:
        return self._nodes

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Table) and self.generation == other.generation

    def __hash__(self) -> int:
        return hash(self.generation)

    def __repr__(self) -> str:
        return f"<Table {self.generation[:12]}: {len(self)} nodes>"

    def _place(self, index: int) -> tuple[Folder, int, int]:
        """The folder that the first name of a node is in, its place there, and the number of the folder."""
        if not 0 < index < self._nodes:
            raise IndexError(f"node {index} of {self._nodes}")
        place = self._aliases[1][index] if self._aliases else index
        number = bisect_right(self._bases, place) - 1
        return self.folders[number], place - self._bases[number], number

    def folder_number(self, index: int) -> int | None:
        """The number of a directory's folder; None for what is no directory."""
        if index == 0:
            return 0
        folder, place, number = self._place(index)
        at = bisect_left(folder.subfolders, place)
        return self._firsts[number] + at if at < len(folder.subfolders) and folder.subfolders[at] == place else None

    def subfolder_numbers(self, number: int) -> range:
        """The numbers of the folders of the directories in a folder."""
        return range(self._firsts[number], self._firsts[number + 1])

    def folders_below(self, numbers: range) -> range:
        """As `subfolder_numbers`, of folders that follow each other: those below do too."""
        return range(self._firsts[numbers.start], self._firsts[numbers.stop])

    @property
    def has_links(self) -> bool:
        """Whether a file has several names: nodes are in no order then."""
        return self._aliases is not None

    def nodes_of(self, numbers: range) -> range:
        """The nodes of the names in folders that follow each other, in order; only without hard links."""
        return range(self._bases[numbers.start], self._bases[numbers.stop])

    def subtree(self, number: int) -> bytes:
        """The digest of all that lies in a folder."""
        return self._digests[number]

    def node(self, index: int) -> Node:
        """`IndexError` for an index that is not in the table, as all methods here."""
        if index == 0:
            return unpack_node(*self.root)
        folder, place, _ = self._place(index)
        return folder.node(place)

    def children(self, index: int) -> Sequence[tuple[bytes, int]]:
        """The names in a directory and their nodes, sorted by name; empty for what is no directory."""
        number = self.folder_number(index)
        if number is None:
            return []
        base = self._bases[number]
        folder = self.folders[number]
        nodes = self._aliases[0][base : base + folder.count] if self._aliases else range(base, base + folder.count)
        return list(zip(folder.all_names(), nodes, strict=True))

    def numbers(self, index: int) -> tuple[int, ...]:
        """Of a node what `ATTRIBUTES` has, without what it contains."""
        if index == 0:
            return ATTRIBUTES.unpack(self.root[0])
        folder, place, _ = self._place(index)
        return ATTRIBUTES.unpack(folder.attributes(place))

    def child_numbers(self, index: int) -> Iterable[tuple[int, ...]]:
        """Those of `children`, in their order."""
        number = self.folder_number(index)
        return () if number is None else self.folders[number].all_numbers()

    def find(self, parent: int, name: bytes) -> int | None:
        """The node of a name in a directory; None if it is not there."""
        number = self.folder_number(parent)
        place = self.folders[number].find(name) if number is not None else None
        if number is None or place is None:
            return None
        place += self._bases[number]
        return self._aliases[0][place] if self._aliases else place

    def resolve(self, path: bytes) -> int | None:
        """The node of a path relative to the root, without "." and ".."; symbolic links are not followed."""
        index: int | None = 0
        for name in path.split(b"/"):
            if name and index is not None:
                index = self.find(index, name)
        return index

    def digest(self, index: int) -> bytes:
        """32 bytes: of attributes and content identities, and of a directory all below it. Equal digests: equal nodes."""
        if index == 0:
            attributes, tail = self.root
            return blake3(b"".join((b"n", attributes, tail, self._digests[0])))
        folder, place, _ = self._place(index)
        number = self.folder_number(index)
        below = self._digests[number] if number is not None else b""
        return blake3(b"".join((b"n", folder.attributes(place), folder.tail(place), below)))

    def total_bytes(self) -> int:
        """The sizes of all files and texts of links; a file with several names counts once."""
        if self._total is None:
            self._total = sum(folder.content_bytes() for folder in self.folders)
            if self._aliases:
                node_of_place, place_of_node = self._aliases
                for base, folder in zip(self._bases, self.folders, strict=False):
                    for place in folder.linked():
                        if place_of_node[node_of_place[base + place]] != base + place:
                            self._total -= folder.node(place).size
        return self._total

    def chunk_ids(self) -> set[bytes]:
        """The identities of all chunks, without `ZERO_ID`. The set is the caller's own."""
        if self._chunks is None:
            found: set[bytes] = set()
            for folder in self.folders:
                found.update(folder.small_chunks(), folder.large_chunks())
            found.discard(ZERO_ID)
            self._chunks = found
        return set(self._chunks)

    def chunk_sizes(self) -> dict[bytes, int]:
        """The bytes of each chunk of `chunk_ids`."""
        found: dict[bytes, int] = {}
        for folder in self.folders:
            found.update(folder.chunk_sizes())
        found.pop(ZERO_ID, None)
        return found

    def paths_with(self, ids: Collection[bytes], most: int) -> list[bytes]:
        """The paths of files that have one of these chunks, at most so many."""
        found: list[bytes] = []
        for path, index in self.walk():
            node = self.node(index)
            if any(node.chunk(number) in ids for number in range(node.chunk_count())):
                found.append(path)
                if len(found) >= most:
                    break
        return found

    def walk(self) -> Iterator[tuple[bytes, int]]:
        """Each path with its node: names sorted in each directory, a directory before its content; `b""` is the root."""
        stack: list[tuple[bytes, int]] = [(b"", 0)]
        while stack:
            path, index = stack.pop()
            yield path, index
            below = path + b"/" if path else b""
            stack.extend((below + name, child) for name, child in reversed(self.children(index)))

    def small_chunk_ids(self) -> list[bytes]:
        """The identities of the files of at most `WHOLE_BYTES`, each once and in the order of the table, without `ZERO_ID`."""
        found = dict.fromkeys(id for folder in self.folders for id in folder.small_chunks())
        found.pop(ZERO_ID, None)
        return list(found)

    def large_chunk_ids(self) -> set[bytes]:
        """The identities of the pieces of large files, without `ZERO_ID`."""
        found = {id for folder in self.folders for id in folder.large_chunks()}
        found.discard(ZERO_ID)
        return found

    def chunk_places(self, ids: Collection[bytes], start: int = 0) -> tuple[list[tuple[int, int, bytes]], int]:
        """Where these chunks are, as (node, offset in its file, identity), and the folder in which the search has ended.

        The search begins with the folder `start`, and ends when each chunk was found once: chunks that follow each other in the table
        are found without a look at the whole of it.
        """
        left, found = set(ids), list[tuple[int, int, bytes]]()
        number = start if start < len(self.folders) else 0
        for _ in range(len(self.folders)):
            if not left:
                break
            folder, base = self.folders[number], self._bases[number]
            # A few identities are found fastest in the bytes of the folder; a match across two of them is not a chunk.
            if folder.tails and (len(ids) > _FEW or any(id in folder.tails for id in left)):
                for place, offset, id in folder.chunk_places(ids):
                    place += base
                    found.append((self._aliases[0][place] if self._aliases else place, offset, id))
                    left.discard(id)
            if left:
                number = number + 1 if number + 1 < len(self.folders) else 0
        return found, number

    def encode(self, *, compress: bool = True) -> bytes:
        """The wire format; the same for equal tables. Without compression it takes a fifth of the time and three times the bytes."""
        return _MAGIC + pack(encode_folders(self.root, self.folders), compress=compress)

    @classmethod
    def decode(cls, data: bytes | memoryview) -> Table:
        """The table of an encoding. `TableError` for bytes that are none; memory is bounded by the size of `data` and 64 MiB."""
        view = memoryview(data).cast("B")
        if bytes(view[: len(_MAGIC)]) != _MAGIC:
            raise TableError("the bytes do not begin like a table")
        body, rest = unpack(view[len(_MAGIC) :])
        if len(rest):
            raise TableError(f"{len(rest)} bytes follow the table")
        return cls(*decode_folders(body))


def encode_folders(root: tuple[bytes, bytes], folders: Sequence[Folder]) -> bytes:
    """The columns of folders, one after another."""
    names = b"".join([folder.names for folder in folders])
    head = (_HEAD.pack(len(root[1]), len(folders), len(names)), *root, array("I", [folder.count for folder in folders]).tobytes())
    return b"".join((*head, *[folder.records for folder in folders], names, *[folder.tails for folder in folders]))


def decode_folders(body: bytes) -> tuple[tuple[bytes, bytes], list[Folder]]:
    """The root and the folders of `encode_folders`; `TableError` for malformed ones."""
    fixed = _HEAD.size + ATTRIBUTES.size
    if len(body) < fixed:
        raise TableError("the head of the table is cut off")
    tail_bytes, count, name_bytes = _HEAD.unpack_from(body)
    attributes, tail = body[_HEAD.size : fixed], body[fixed : fixed + tail_bytes]
    numbers = ATTRIBUTES.unpack(attributes)
    check_entry(numbers, tail)
    at = fixed + tail_bytes
    if numbers[0] != Kind.DIRECTORY or at + 4 * count > len(body):
        raise TableError("the root is no directory, or the table is cut off")
    counts = array("I", body[at : at + 4 * count])
    at += 4 * count
    records = at + sum(counts) * RECORD.size
    names = records + name_bytes
    if names > len(body):
        raise TableError("the names are cut off")
    return (attributes, tail), cut_folders(counts, body[at:records], body[records:names], body[names:])
