"""The answers of a mounted tree: an immutable table, chunks of a store, and the switch from one table to the next.

The switch
----------
The kernel keeps names and attributes without limit, so a switch has three steps, all on the thread of the back end:

1. `begin`: from now on each answer about a name or an attribute that will change is the old one with validity 0.
2. The back end invalidates `change.entries` and `change.inodes`, on another thread, while the tree goes on answering.
3. `commit`: the new table answers everything, with unlimited validity. The state folder has the new generation before the first new answer.

After a commit no name resolves to the old generation, because the kernel holds no valid cache of a changed name at that moment:

- Answers before `begin` may be valid without limit, and some may be on their way when `begin` runs. A look-up and a listing hold the lock
  of their directory from the request to the cached name, and the invalidation of a name takes that lock exclusively: it waits for them
  and removes what they cached. (For this reason the invalidation must not run on the thread that answers.) A revalidation holds no lock,
  but updates only a name that the invalidation has unhashed already, and no later walk finds an unhashed name. An answer with attributes
  is discarded by the kernel when the inode was invalidated after its request, by the version of attributes.
- Answers after `begin` have validity 0: the next walk asks again.
- Hence between step 2 and `commit` each resolution of a changed name is a request, and `commit` is one point in the sequence of answers.

The cases of a changed name, all of them entries of the change: a name that appears is cached as a negative entry, a name that vanishes or
gets another inode as a positive one; a change of kind is another inode; a rename is a name that vanishes and one that appears; names of
hard links are compared by inode, so that a link that is split off is a changed name. A directory that vanishes can be the working
directory of a process, which resolves names below without the names above: all names below it are entries too. Afterwards the directory
is empty, as a removed one. Names below a new directory have a parent that the kernel has never seen.

Cached listings: the invalidation of a name marks the listing of its directory. A listing read between steps 2 and 3 is cached by the
kernel with the directory's time of modification, and compared with it before the next use. Where a listing changes and the time stays
(`touch -d`, `rsync -t`, an exclusion, a vanished directory), the directory is shown one nanosecond younger from `begin` to `commit`, so
that the comparison fails. Cookies of a listing are hashes of names, with the order of the listing: a listing that a switch interrupts has
each unchanged name exactly once, without any state.

Old inodes
----------
An inode that no name has any more stays readable until the kernel has dropped all references to it (`forget`), which includes open files
and mapped ones: opens make no request. It has the attributes and bytes of the last generation that showed it. After a restart the
references of the earlier process are unknown; such an inode is kept until a `forget` of more references than this process gave shows that
the kernel dropped it.

Reads
-----
A read of stored chunks is one call of `local` for each chunk, and never waits. The other chunks of the read are requested all at once,
then awaited."""

from __future__ import annotations

import errno
import os
import stat
import time
import zlib
from array import array
from collections import deque
from collections.abc import Awaitable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from monarch.fs._daemon.numbering import Change, Numbering, change
from monarch.fs._daemon.tree_state import TreeState
from monarch.fs._tree.node import ID_SIZE, ZERO_ID, Kind, Node
from monarch.fs._tree.operations import ROOT, Attr, Entry, StatFs
from monarch.fs._tree.table import Table

_TYPES: dict[int, int] = {Kind.DIRECTORY: stat.S_IFDIR, Kind.FILE: stat.S_IFREG, Kind.SYMLINK: stat.S_IFLNK}
_NAME_BYTES = 255
_FOREVER = float("inf")
# Entries whose attributes are computed together.
_AT_ONCE = 4096
# The most listings that are kept: each request of the kernel takes about 25 entries of a listing.
_LISTINGS = 64
# The most attributes that are kept, about 300 bytes each; the kernel has its own cache of them.
_ATTRS = 65536
# The most nodes of one commit whose places of chunks are kept.
_ADDED = 1024
# The most stale paths in the status.
_STALE = 1000
# The most failed reads that are kept for observers.
_FAILURES = 64
# Bits of the rank in a cookie: cookies distinguish 2**20 names of one hash in a directory.
_RANK_BITS = 20


class ChunkSource(Protocol):
    """Where the contents of chunks come from."""

    def local(self, id: bytes, offset: int, size: int) -> bytes | None:
        """The bytes of a chunk that is on this machine, at once; None where it is not."""
        ...

    def fetch(self, id: bytes, offset: int, size: int) -> Awaitable[bytes]:
        """The bytes of a chunk from elsewhere; the request starts at the call.

        An `OSError` has errno and reason: ESTALE where the source file changed.
        """
        ...


class ReadError(NamedTuple):
    """Why a read failed. `number` counts the failures of the process; `time` in seconds since the epoch."""

    number: int
    path: str
    errno: int
    reason: str
    time: float


class TreeStatus(NamedTuple):
    """Counts since the start of the process that serves the mount."""

    generation: str
    # Chunks that were not on the machine when they were read.
    faults: int
    # Reads, and the reads that waited for such a chunk.
    reads: int
    waited: int
    # Bytes answered, and the bytes of faults among them.
    bytes_read: int
    bytes_fetched: int
    errors: int
    # Files that changed at the source before their bytes arrived; at most 1,000.
    stale: list[str]
    last_error: ReadError | None
    # Inodes of earlier generations to which the kernel refers.
    retired: int


class MountedTree:
    """`TreeOperations` over a table; one thread, that of the back end, calls everything but `prepare`."""

    def __init__(
        self,
        table: Table,
        chunks: ChunkSource,
        state: Path,
        *,
        owner: tuple[int, int] | None = None,
    ) -> None:
        """A new tree, with its state in a folder. `owner`: user and group of everything, instead of the table's."""
        self._setup(table, Numbering.first(table), {}, 0, chunks, TreeState(state), owner)
        self._state.save_table(table)
        self._state.save_numbers(table.generation, 0, self._numbering)
        self._state.commit(table.generation, 0, self._numbering.following, {})
        self._state.sweep(table.generation, 0)

    @classmethod
    def restore(cls, state: Path, chunks: ChunkSource, *, owner: tuple[int, int] | None = None) -> MountedTree:
        """The tree of a state folder, with the numbers that the earlier process gave; `StateError` for a damaged folder."""
        folder = TreeState(state)
        saved = folder.load()
        tree = cls.__new__(cls)
        tree._setup(saved.table, saved.numbering, saved.retired, saved.serial, chunks, folder, owner)
        tree._unsure = bytearray(b"\1") * saved.numbering.following
        return tree

    def _setup(
        self,
        table: Table,
        numbering: Numbering,
        retired: Mapping[int, Node],
        serial: int,
        chunks: ChunkSource,
        state: TreeState,
        owner: tuple[int, int] | None,
    ) -> None:
        self._table, self._numbering, self._chunks, self._state, self._owner = table, numbering, chunks, state, owner
        self.generation = table.generation
        self._serial = serial
        self._retired = dict(retired)
        # References that this process gave to the kernel, by inode; and the inodes to which it may have references of an earlier process.
        self._references = array("q", [0]) * numbering.following
        self._unsure = bytearray(numbering.following)
        self._attrs: dict[int, Attr] = {}
        self._listings: dict[int, list[tuple[int, bytes, int]]] = {}
        self._change: Change | None = None
        self._changing_names: dict[int, set[bytes]] = {}
        self._changing_inodes: frozenset[int] = frozenset()
        self._faults = self._reads = self._waited = self._bytes_read = self._bytes_fetched = self._errors = 0
        self._stale: dict[str, int] = {}
        self._failures: deque[ReadError] = deque(maxlen=_FAILURES)
        self._paths: dict[int, bytes] | None = None
        # The places of the chunks of the nodes that the last commit added, as (inode, offset); the table and the inodes of its nodes. One
        # object, because other threads read it: the inodes belong to this table.
        self._placed: tuple[dict[bytes, list[tuple[int, int]]], Table, array[int]] = {}, table, numbering.numbers
        # The folder in which the last chunks were found.
        self._known_from = 0

    # Names and attributes.

    def lookup(self, parent: int, name: bytes) -> Entry:
        """The entry of a name; without attributes where there is none. `OSError`: ENOTDIR, ENAMETOOLONG, ESTALE for an unknown parent."""
        directory = self._numbering.index(parent)
        if directory < 0:
            self._removed_directory(parent)
            return Entry(name, None)
        index = self._table.find(directory, name)
        if index is None:
            self._directory(directory)
            if len(name) > _NAME_BYTES:
                raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
            return Entry(name, None, self._valid(parent, name))
        inode = self._numbering.numbers[index]
        self._references[inode] += 1
        return Entry(name, self.attr(inode), self._valid(parent, name))

    def attr(self, inode: int) -> Attr:
        """The attributes of an inode; `OSError` ESTALE for an unknown one."""
        found = self._attrs.get(inode)
        if found is None:
            if len(self._attrs) >= _ATTRS:
                self._attrs.clear()
            found = self._attrs[inode] = self._made(inode)
        return found

    def readlink(self, inode: int) -> bytes:
        node = self._node(inode)
        if node.kind is not Kind.SYMLINK:
            raise OSError(errno.EINVAL, "no symbolic link")
        return node.target

    def readdir(self, inode: int, after: int) -> Iterator[Entry]:
        """The entries whose cookie is above `after`. An entry counts as a reference when the next one is asked for."""
        index = self._numbering.index(inode)
        if index < 0:
            self._removed_directory(inode)
            return
        listing = self._listings.get(inode)
        if listing is None:
            self._directory(index)
            while len(self._listings) >= _LISTINGS:
                del self._listings[next(iter(self._listings))]
            children = self._table.children(index)
            listing = self._listings[inode] = _listing(children)
            if self._change is None and len(children) <= _AT_ONCE:
                self._make_all(index, children)
        # A caller that keeps the iterator across a commit gets numbers of one generation.
        numbers = self._numbering.numbers
        for cookie, name, child in listing[_following(listing, after) :]:
            number = numbers[child]
            yield Entry(name, self.attr(number), self._valid(inode, name), cookie)
            self._references[number] += 1

    def listxattr(self, inode: int) -> list[bytes]:
        return [name for name, _ in self._node(inode).xattrs if name.startswith(b"user.")]

    def getxattr(self, inode: int, name: bytes) -> bytes:
        for one, value in self._node(inode).xattrs:
            if one == name and name.startswith(b"user."):
                return value
        raise OSError(errno.ENODATA, os.strerror(errno.ENODATA))

    def statfs(self) -> StatFs:
        return StatFs(self._table.total_bytes(), len(self._table))

    def forget(self, inode: int, n: int) -> None:
        """The kernel drops references; an old inode without any is dropped. Other references are of an earlier process."""
        if inode == ROOT or not 0 <= inode < len(self._references):
            return
        left = self._references[inode] - n
        if left < 0:
            self._unsure[inode] = 0
        self._references[inode] = max(0, left)
        if left <= 0 and not self._unsure[inode] and self._retired.pop(inode, None) is not None:
            self._attrs.pop(inode, None)

    def _valid(self, parent: int, name: bytes) -> float:
        if self._change is not None and name in self._changing_names.get(parent, ()):
            return 0.0
        return _FOREVER

    def _node(self, inode: int) -> Node:
        index = self._numbering.index(inode)
        if index >= 0:
            return self._table.node(index)
        try:
            return self._retired[inode]
        except KeyError:
            raise OSError(errno.ESTALE, f"inode {inode} of no generation that is in use") from None

    def _directory(self, index: int) -> None:
        if self._table.node(index).kind is not Kind.DIRECTORY:
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))

    def _removed_directory(self, inode: int) -> None:
        if self._node(inode).kind is not Kind.DIRECTORY:
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))

    def _made(self, inode: int) -> Attr:
        index = self._numbering.index(inode)
        if index >= 0:
            kind, _, mode, uid, gid, nlink, size, mtime, blocks, _ = self._table.numbers(index)
        else:
            kind, mode, uid, gid, size, mtime, nlink, blocks = self._node(inode)[:8]
        if self._owner is not None:
            uid, gid = self._owner
        valid = _FOREVER
        if self._change is not None:
            valid = 0.0 if inode in self._changing_inodes else valid
            mtime += inode in self._change.silent
        return Attr(inode, _TYPES[kind] | mode, nlink, uid, gid, size, blocks, mtime, valid, mtime)

    def _make_all(self, index: int, children: Sequence[tuple[bytes, int]]) -> None:
        """The attributes of all entries of a directory: several times faster than one after another."""
        attrs, numbers, owner = self._attrs, self._numbering.numbers, self._owner
        if len(attrs) + len(children) > _ATTRS:
            attrs.clear()
        for (_, child), (kind, _, mode, uid, gid, nlink, size, mtime, blocks, *_) in zip(
            children, self._table.child_numbers(index), strict=True
        ):
            inode = numbers[child]
            if inode not in attrs:
                user, group = (uid, gid) if owner is None else owner
                attrs[inode] = Attr(inode, _TYPES[kind] | mode, nlink, user, group, size, blocks, mtime, _FOREVER, mtime)

    # Contents.

    async def read(self, inode: int, offset: int, size: int) -> bytes | memoryview:
        """Bytes of a file; fewer than `size` only at its end. `OSError`: EACCES for a file that the client cannot read, EISDIR, or EIO."""
        node = self._node(inode)
        if node.kind is not Kind.FILE:
            raise OSError(errno.EISDIR if node.kind is Kind.DIRECTORY else errno.EINVAL, "no regular file")
        self._reads += 1
        if not node.readable:
            raise self._failed(inode, OSError(errno.EACCES, "the client cannot read the file"))
        end = min(offset + size, node.size)
        if end <= offset:
            return b""
        piece = node.piece()
        first, last = offset // piece, (end - 1) // piece
        if len(node.chunks) <= last * ID_SIZE:
            raise self._failed(inode, OSError(errno.EIO, f"the table has {node.chunk_count()} chunks of {node.size} bytes"))
        parts: list[bytes] = []
        awaited: list[tuple[int, int, Awaitable[bytes]]] = []
        for number in range(first, last + 1):
            start = max(offset - number * piece, 0)
            wanted = min(end - number * piece, piece) - start
            id = node.chunks[number * ID_SIZE : (number + 1) * ID_SIZE]
            if id == ZERO_ID:
                parts.append(bytes(wanted))
                continue
            found = self._chunks.local(id, start, wanted)
            if found is None or len(found) != wanted:
                self._faults += 1
                awaited.append((len(parts), wanted, self._chunks.fetch(id, start, wanted)))
                found = b""
            parts.append(found)
        if awaited:
            await self._arrived(inode, parts, awaited)
        self._bytes_read += end - offset
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _arrived(self, inode: int, parts: list[bytes], awaited: list[tuple[int, int, Awaitable[bytes]]]) -> None:
        failure: OSError | None = None
        self._waited += 1
        # All are awaited, also after a failure: an answer without a reader would be an unawaited task.
        for place, wanted, answer in awaited:
            try:
                part = await answer
                if len(part) != wanted:
                    raise OSError(errno.EIO, f"{len(part)} of {wanted} bytes came")
                parts[place] = part
                self._bytes_fetched += wanted
            except OSError as error:
                failure = failure or error
        if failure is not None:
            raise self._failed(inode, failure) from failure
        if self._stale:
            self._stale.pop(self.path(inode), None)

    def _failed(self, inode: int, error: OSError) -> OSError:
        number, reason = error.errno or errno.EIO, error.strerror or str(error)
        path = self.path(inode)
        if number == errno.ESTALE and len(self._stale) < _STALE:
            self._stale[path] = inode
        shown = number if number in (errno.EACCES, errno.EINTR) else errno.EIO
        self._errors += 1
        self._failures.append(ReadError(self._errors, path, shown, reason, time.time()))
        return OSError(shown, f"{path}: {reason}")

    # The switch.

    def prepare(self, new: Table, delta: tuple[str, bytes] | None = None) -> Change:
        """What `commit` will change; alters nothing, and may run on another thread.

        `delta`: the generation and the difference that the table was made of.
        """
        self._state.save_table(new, delta)
        return change(self._table, self._numbering, new)

    def fits(self, change: Change) -> bool:
        """Whether the change is from what the tree shows: else it is to be prepared again. An equal generation may have other numbers."""
        return change.basis is self._numbering

    def begin(self, change: Change) -> None:
        """Changed names and attributes are answered uncached from now on. `ValueError`: another switch is under way, or another base."""
        if self._change is change:
            return
        if self._change is not None:
            raise ValueError(f"the switch to {self._change.generation} is under way")
        if not self.fits(change):
            raise ValueError(f"the change is from {change.base}, the tree shows {self.generation}")
        # Another commit may have removed it after it was prepared.
        self._state.save_table(change.table)
        self._state.save_numbers(change.generation, self._serial + 1, change.numbering)
        self._mark(change)

    def cancel(self, change: Change) -> None:
        """Ends a switch that has begun without a commit. The old answers are cached again."""
        if self._change is change:
            self._mark(None)
            self._drop_attrs(change)

    def commit(self, change: Change) -> None:
        """The new generation answers from now on. `ValueError` where the switch has not begun."""
        if self._change is not change:
            raise ValueError(f"the switch to {change.generation} has not begun")
        references, unsure = self._references, self._unsure
        retired = {inode: node for inode, node in change.gone.items() if references[inode] > 0 or unsure[inode]}
        retired.update(self._retired)
        serial = self._serial + 1
        self._state.commit(change.generation, serial, change.numbering.following, retired)
        added = change.numbering.following - len(references)
        references.extend([0] * added)
        unsure.extend(bytes(added))
        stale = {inode: path for path, inode in self._stale.items()}
        self._retired, self._serial = retired, serial
        self._table, self._numbering, self.generation = change.table, change.numbering, change.generation
        self._mark(None)
        self._drop_attrs(change)
        for inode in change.gone:
            self._attrs.pop(inode, None)
            self._stale.pop(stale.get(inode, ""), None)
        self._listings.clear()
        self._paths = None
        self._placed = _chunks_added(change), change.table, change.numbering.numbers
        self._state.sweep(change.generation, serial)

    def _mark(self, change: Change | None) -> None:
        self._change = change
        self._changing_names = {}
        self._changing_inodes = frozenset(change.inodes) if change is not None else frozenset()
        if change is not None:
            for parent, name in change.entries:
                self._changing_names.setdefault(parent, set()).add(name)
            self._drop_attrs(change)

    def _drop_attrs(self, change: Change) -> None:
        for inode in change.inodes:
            self._attrs.pop(inode, None)

    # For the process that serves the mount.

    def known(self, chunk_ids: Collection[bytes]) -> Iterator[tuple[int, int, bytes]]:
        """Where the kernel takes pages of these chunks: (inode, offset, chunk) of inodes of this generation that it refers to.

        Any thread may call it: a switch meanwhile changes no content of an inode. A chunk in several files may miss some of them.
        """
        wanted = frozenset(chunk_ids)
        added, table, numbers = self._placed
        if added.keys() >= wanted:
            places = [(inode, offset, id) for id in wanted for inode, offset in added[id]]
        else:
            found, self._known_from = table.chunk_places(wanted, self._known_from)
            places = [(numbers[index], offset, id) for index, offset, id in found]
        references, unsure = self._references, self._unsure
        return ((inode, offset, id) for inode, offset, id in places if references[inode] > 0 or unsure[inode])

    def inode_of(self, path: bytes) -> int | None:
        """The inode of a path relative to the root, b"" for the root; None where there is none."""
        index: int | None = 0
        for name in path.split(b"/") if path else []:
            index = self._table.find(index, name) if index is not None and self._table.node(index).kind is Kind.DIRECTORY else None
        return None if index is None else self._numbering.numbers[index]

    def path(self, inode: int) -> str:
        """A path of an inode, for people; the number of one that no name has any more."""
        if self._paths is None:
            self._paths = {}
            for path, index in self._table.walk():
                self._paths.setdefault(self._numbering.numbers[index], path)
        path = self._paths.get(inode)
        return f"inode {inode} of an earlier generation" if path is None else os.fsdecode(path) or "."

    def failures(self, after: int) -> list[ReadError]:
        """The failed reads of a higher number, at most the last `_FAILURES`."""
        return [failure for failure in self._failures if failure.number > after]

    def status(self) -> TreeStatus:
        return TreeStatus(
            self.generation,
            self._faults,
            self._reads,
            self._waited,
            self._bytes_read,
            self._bytes_fetched,
            self._errors,
            sorted(self._stale),
            self._failures[-1] if self._failures else None,
            len(self._retired),
        )


def _chunks_added(change: Change) -> dict[bytes, list[tuple[int, int]]]:
    """Inodes and offsets of the chunks of nodes that have new numbers; none where those are many."""
    found: dict[bytes, list[tuple[int, int]]] = {}
    if change.numbering.following - change.basis.following <= _ADDED:
        for inode in range(change.basis.following, change.numbering.following):
            node = change.table.node(change.numbering.index(inode))
            for number in range(node.chunk_count()):
                found.setdefault(node.chunk(number), []).append((inode, number * node.piece()))
    return found


def _listing(children: Sequence[tuple[bytes, int]]) -> list[tuple[int, bytes, int]]:
    """Cookie, name and node of each entry, in the order of the cookies: a hash of the name, and a rank among names of equal hash."""
    ordered = sorted((zlib.crc32(name) + 1, name, child) for name, child in children)
    listing: list[tuple[int, bytes, int]] = []
    cookie = 0
    for hashed, name, child in ordered:
        cookie = max(hashed << _RANK_BITS, cookie + 1)
        listing.append((cookie, name, child))
    return listing


def _following(listing: list[tuple[int, bytes, int]], after: int) -> int:
    low, high = 0, len(listing)
    while low < high:
        middle = (low + high) // 2
        if listing[middle][0] <= after:
            low = middle + 1
        else:
            high = middle
    return low
