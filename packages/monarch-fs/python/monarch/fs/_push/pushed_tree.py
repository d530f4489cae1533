"""Makes a directory of this machine what a tree is: real, writable files.

Directories are made first, then files are compared, those that differ are written, then names of hard links, then what the source lacks
is removed, and at last directories get their attributes, from the deepest up. A file that differs in its content is replaced by a
rename; one that differs in its attributes alone gets these in place, unless another name shares its inode. Contents are equal if the
record of the last push shows it (`push_record`), else if their digests are; equal size and mtime alone prove nothing.

Chunks are asked for in batches of 16 MiB, a few of them ahead of the writer, so memory does not grow with the tree. A file that cannot
be had or written is recorded, and the others go on; a full disk ends the push. Files that the source lacks are removed only if all else has
succeeded.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

from monarch.extension.directory_tree import FileDigest, blake3, digest_files
from monarch.fs._push.file_writer import FileWriter, mode_of, set_attributes
from monarch.fs._push.folder import RESERVED, TEMPORARY, Folder, temporary_name
from monarch.fs._push.push_counts import PushCounts, PushFailure
from monarch.fs._push.push_record import PushRecord, Written
from monarch.fs._push.relocation import Relocation
from monarch.fs._tree.node import ID_SIZE, PIECE_BYTES, ZERO_ID, Kind, Node

T = TypeVar("T")

_BATCH_BYTES = 16 << 20
_BATCHES_AHEAD = 3
_SET_ID = 0o6000
# Errors that the next file would have too.
_FATAL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ESTALE})


class TreeNodes(Protocol):
    """What a push needs of a table; `Table` is one."""

    def node(self, index: int) -> Node: ...

    def children(self, index: int) -> Sequence[tuple[bytes, int]]: ...


class Failed(NamedTuple):
    """A chunk that could not be had."""

    errno: int
    reason: str
    stale: bool


Contents = Mapping[bytes, "bytes | Failed"]


class Job(NamedTuple):
    """A file that is to be written: its directory, its name, its node."""

    parts: tuple[bytes, ...]
    name: bytes
    number: int

    @property
    def path(self) -> bytes:
        return b"/".join((*self.parts, self.name))


class PushedTree:
    """A tree that is pushed into `target` on this machine.

    `fetch` starts to get chunks, and returns the function that waits for them; it is called several times before the first of these is.
    `state` is the folder of the records, None for no record.
    """

    def __init__(
        self,
        table: TreeNodes,
        target: str,
        fetch: Callable[[Sequence[bytes]], Callable[[], Contents]],
        *,
        delete: bool = False,
        set_id: bool = False,
        relocation: Relocation | None = None,
        state: Path | None = None,
    ) -> None:
        self._table = table
        self._target = target
        self._fetch = fetch
        self._delete, self._set_id = delete, set_id
        self._relocation = relocation
        self._record = PushRecord(None if state is None else PushRecord.place(state, target), target, relocation)
        self._written: dict[bytes, Written] = {}
        self._counts = PushCounts()
        # The first name of each file, to which the others become links.
        self._names: dict[int, Job] = {}
        self._links: list[Job] = []
        self._jobs: list[Job] = []
        self._folders: list[tuple[tuple[bytes, ...], int]] = []

    def _node(self, number: int) -> Node:
        """A node of the tree as it is written: a file runs as its caller, unless set-id bits are asked for."""
        node = self._table.node(number)
        return node if self._set_id or node.kind != Kind.FILE else node._replace(mode=node.mode & ~_SET_ID)

    def apply(self) -> PushCounts:
        """Makes the target what the tree is. Failures of files are in the result; `OSError` where the target cannot be opened or made."""
        folder = Folder(self._target)
        try:
            self._record.load()
            try:
                self._plan(folder)
                self._write(folder)
                for job in self._links:
                    self._guarded(job.path, lambda job=job: self._link(folder, job))
                if self._delete and not self._counts.failure_count:
                    self._remove(folder)
            except _Stopped:
                pass
            with suppress(_Stopped):
                for parts, index in reversed(self._folders):
                    self._guarded(b"/".join(parts), lambda parts=parts, index=index: self._finish_folder(folder, parts, index))
            self._record.files = self._written
            self._record.save()
        finally:
            folder.close()
        return self._counts

    # ---- what there is already

    def _plan(self, folder: Folder) -> None:
        rest: list[tuple[tuple[bytes, ...], int]] = [((), 0)]
        while rest:
            parts, index = rest.pop()
            below = self._guarded(b"/".join(parts), lambda parts=parts, index=index: self._plan_folder(folder, parts, index))
            if below is not None:
                self._folders.append((parts, index))
                rest += reversed(below)
        # Python compares the size and time of a source with its cached module: sources are first, so that a rewritten source invalidates
        # its cache.
        self._jobs.sort(key=lambda job: job.name.endswith(b".pyc"))

    def _plan_folder(self, folder: Folder, parts: tuple[bytes, ...], index: int) -> list[tuple[tuple[bytes, ...], int]]:
        below: list[tuple[tuple[bytes, ...], int]] = []
        files: list[tuple[Job, Node, os.stat_result]] = []
        with folder.opened(parts) as fd:
            if os.geteuid() and stat.S_IMODE(os.fstat(fd).st_mode) & 0o700 != 0o700:
                os.fchmod(fd, stat.S_IMODE(os.fstat(fd).st_mode) | 0o700)
            if folder.is_locked:
                for name in os.listdir(fd):
                    if os.fsencode(name).startswith(TEMPORARY):
                        os.unlink(name, dir_fd=fd)
            for name, child in self._table.children(index):
                if name == RESERVED or name.startswith(TEMPORARY):
                    continue
                job = Job(parts, name, child)
                node = self._node(child)
                failures = self._counts.failure_count
                found = self._guarded(job.path, lambda fd=fd, job=job, node=node: self._room(folder, fd, job, node))
                if self._counts.failure_count > failures:
                    continue
                if node.kind == Kind.DIRECTORY:
                    below.append(((*parts, name), child))
                elif node.kind == Kind.SYMLINK:
                    self._guarded(job.path, lambda fd=fd, job=job, node=node: self._symlink(fd, job.name, node))
                else:
                    self._counts.files += 1
                    if not node.readable:
                        self._counts.unreadable.append(os.fsdecode(job.path))
                    elif child in self._names:
                        self._links.append(job)
                    else:
                        self._names[child] = job
                        if found is not None:
                            files.append((job, node, found))
                        else:
                            self._jobs.append(job)
            self._compare(fd, files)
        return below

    def _room(self, folder: Folder, fd: int, job: Job, node: Node) -> os.stat_result | None:
        """What file or link has this name and may stay; None: nothing, or a directory as it should be. Removes what is of another kind."""
        try:
            found = os.stat(job.name, dir_fd=fd, follow_symlinks=False)
        except FileNotFoundError:
            found = None
        if node.kind == Kind.DIRECTORY:
            if found is not None and not stat.S_ISDIR(found.st_mode):
                os.unlink(job.name, dir_fd=fd)
                found = None
            if found is None:
                os.mkdir(job.name, 0o700, dir_fd=fd)
            return None
        if found is not None and stat.S_ISDIR(found.st_mode):
            if self._delete:
                self._counts.deleted += folder.remove(job.parts, job.name)
            else:
                try:
                    os.rmdir(job.name, dir_fd=fd)
                except OSError as e:
                    self._fail(job.path, e.errno or errno.EISDIR, "a directory that is not empty is there; delete=True removes it")
            return None
        return found if found is not None and stat.S_ISREG(found.st_mode) == (node.kind == Kind.FILE) else None

    def _symlink(self, fd: int, name: bytes, node: Node) -> None:
        text = node.target if self._relocation is None else self._relocation.link(node.target)
        try:
            if os.readlink(name, dir_fd=fd) == text:
                return
        except OSError:
            pass
        temporary = temporary_name()
        os.symlink(text, temporary, dir_fd=fd)
        try:
            os.utime(temporary, ns=(node.mtime_ns, node.mtime_ns), dir_fd=fd, follow_symlinks=False)
            if os.geteuid() == 0:
                os.chown(temporary, node.uid, node.gid, dir_fd=fd, follow_symlinks=False)
            os.rename(temporary, name, src_dir_fd=fd, dst_dir_fd=fd)
        except BaseException:
            os.unlink(temporary, dir_fd=fd)
            raise

    def _compare(self, fd: int, files: list[tuple[Job, Node, os.stat_result]]) -> None:
        """Files that are there: those with another content are to be written; the others get their attributes."""
        digested: list[tuple[Job, Node, os.stat_result]] = []
        for job, node, found in files:
            written = self._record.files.get(job.path)
            if written is not None and written.holds(found) and written.content == _content(node):
                if self._settle(fd, job, node, found):
                    self._keep(fd, job, written)
            elif found.st_size == node.size and found.st_mode & 0o400:
                digested.append((job, node, found))
            else:
                self._jobs.append(job)
        # The directory is already open: its path below /proc leads to it, even after a rename.
        digests = digest_files([b"/proc/self/fd/%d/%s" % (fd, job.name) for job, _, _ in digested], PIECE_BYTES)
        for (job, node, found), digest in zip(digested, digests, strict=True):
            if not isinstance(digest, FileDigest) or not digest.settled or not _is_content(node, digest.digests):
                self._jobs.append(job)
            elif self._relocation is not None and self._may_hold_prefix(fd, job):
                self._jobs.append(job)
            elif self._settle(fd, job, node, found):
                self._keep(fd, job, None)

    def _may_hold_prefix(self, fd: int, job: Job) -> bool:
        """Whether a file with the source's content has a prefix that has to be replaced."""
        relocation = self._relocation
        assert relocation is not None
        tail = b""
        with open(os.open(job.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=fd), "rb", buffering=0) as file:
            while data := file.read(PIECE_BYTES):
                if relocation.is_in(tail + data):
                    return True
                tail = data[-relocation.overlap :] if relocation.overlap else b""
        return False

    def _settle(self, fd: int, job: Job, node: Node, found: os.stat_result) -> bool:
        """Gives a file with the right content its attributes; False where it is written anew instead."""
        is_root = os.geteuid() == 0
        same = stat.S_IMODE(found.st_mode) == mode_of(node, found) and found.st_mtime_ns == node.mtime_ns
        same = same and (not is_root or (found.st_uid, found.st_gid) == (node.uid, node.gid))
        # Names outside of the target may share the inode: its attributes are not changed.
        if found.st_nlink != node.nlink or (not same and found.st_nlink > 1):
            self._jobs.append(job)
            return False
        if not same:
            file = os.open(job.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=fd)
            try:
                if (os.fstat(file).st_ino, os.fstat(file).st_nlink) != (found.st_ino, 1):
                    self._jobs.append(job)
                    return False
                set_attributes(file, node)
            finally:
                os.close(file)
        return True

    def _keep(self, fd: int, job: Job, written: Written | None) -> None:
        found = os.stat(job.name, dir_fd=fd, follow_symlinks=False)
        node = self._node(job.number)
        relocated, left = (written.relocated, written.left) if written is not None else (False, False)
        self._written[job.path] = Written.of(found, _content(node), relocated, left)
        self._count_left(job, left)

    # ---- writing

    def _write(self, folder: Folder) -> None:
        arriving = self._arriving()
        for job in self._jobs:
            node = self._node(job.number)
            if self._is_cache_of_relocated(job):
                self._guarded(job.path, lambda job=job: self._unlink(folder, job))
                for _ in islice(arriving, node.chunk_count()):
                    continue
                continue
            chunks = islice(arriving, node.chunk_count())
            self._guarded(job.path, lambda job=job, node=node, chunks=chunks: self._write_file(folder, job, node, chunks))
            for _ in chunks:  # the chunks that remain after an error
                continue

    def _write_file(self, folder: Folder, job: Job, node: Node, chunks: Iterator[bytes | Failed | None]) -> None:
        with folder.opened(job.parts) as fd:
            writer = FileWriter(fd, job.name, node, job.path, self._relocation)
            try:
                left = node.size
                for chunk in chunks:
                    if isinstance(chunk, Failed):
                        self._fail(job.path, chunk.errno, chunk.reason, chunk.stale)
                        return
                    size = min(left, node.piece())
                    if chunk is not None and len(chunk) != size:
                        raise OSError(errno.EIO, f"a chunk of {len(chunk)} bytes in the place of {size}")
                    writer.write(chunk, size)
                    left -= size
                found = writer.finish()
            finally:
                writer.discard()
        self._written[job.path] = Written.of(found, _content(node), writer.relocated, writer.left)
        self._counts.written += 1
        self._counts.bytes_written += writer.size
        self._count_left(job, writer.left)

    def _count_left(self, job: Job, left: bool) -> None:
        # Python replaces the path in cached code when it loads it.
        if left and not job.name.endswith(b".pyc"):
            self._counts.left.append(os.fsdecode(job.path))

    def _is_cache_of_relocated(self, job: Job) -> bool:
        """Whether this is the cached code of a module that was rewritten; the cache may seem valid by the time of its source."""
        if self._relocation is None or not job.name.endswith(b".pyc") or not job.parts or job.parts[-1] != b"__pycache__":
            return False
        source = b"/".join((*job.parts[:-1], job.name.split(b".", 1)[0] + b".py"))
        written = self._written.get(source)
        return written is not None and written.relocated

    def _unlink(self, folder: Folder, job: Job) -> None:
        with folder.opened(job.parts) as fd:
            try:
                os.unlink(job.name, dir_fd=fd)
            except FileNotFoundError:
                return

    def _arriving(self) -> Iterator[bytes | Failed | None]:
        """The chunks of all jobs in order; None for zeros."""
        batches = self._batches()
        ahead: deque[tuple[list[bytes], Callable[[], Contents]]] = deque()
        while True:
            while len(ahead) < _BATCHES_AHEAD and (batch := next(batches, None)) is not None:
                ids = list(dict.fromkeys(id for id in batch if id != ZERO_ID))
                ahead.append((batch, self._fetch(ids) if ids else dict[bytes, "bytes | Failed"]))
            if not ahead:
                return
            batch, wait = ahead.popleft()
            contents = wait()
            for id in batch:
                yield None if id == ZERO_ID else contents.get(id, Failed(errno.EIO, "the chunk was not delivered", False))

    def _batches(self) -> Iterator[list[bytes]]:
        batch: list[bytes] = []
        size = 0
        for job in self._jobs:
            node = self._node(job.number)
            for number in range(node.chunk_count()):
                batch.append(node.chunk(number))
                size += node.piece()
                if size >= _BATCH_BYTES:
                    yield batch
                    batch, size = [], 0
        if batch:
            yield batch

    # ---- links, removal, directories

    def _link(self, folder: Folder, job: Job) -> None:
        first = self._names[job.number]
        if first.path not in self._written:
            return
        with folder.opened(first.parts) as source, folder.opened(job.parts) as fd:
            file = os.stat(first.name, dir_fd=source, follow_symlinks=False)
            try:
                found = os.stat(job.name, dir_fd=fd, follow_symlinks=False)
                if (found.st_dev, found.st_ino) == (file.st_dev, file.st_ino):
                    return
            except FileNotFoundError:
                pass
            temporary = temporary_name()
            os.link(first.name, temporary, src_dir_fd=source, dst_dir_fd=fd, follow_symlinks=False)
            try:
                os.rename(temporary, job.name, src_dir_fd=fd, dst_dir_fd=fd)
            except BaseException:
                os.unlink(temporary, dir_fd=fd)
                raise
            # A new name changes the ctime of the inode.
            file = os.stat(job.name, dir_fd=fd, follow_symlinks=False)
            self._written[first.path] = self._written[first.path]._replace(ctime_ns=file.st_ctime_ns)

    def _remove(self, folder: Folder) -> None:
        for parts, index in self._folders:
            kept = {name for name, _ in self._table.children(index)}
            with folder.opened(parts) as fd:
                names = [os.fsencode(name) for name in os.listdir(fd)]
            for name in names:
                if name in kept or name == RESERVED or name.startswith(TEMPORARY):
                    continue
                removed = self._guarded(b"/".join((*parts, name)), lambda parts=parts, name=name: folder.remove(parts, name))
                self._counts.deleted += removed or 0

    def _finish_folder(self, folder: Folder, parts: tuple[bytes, ...], index: int) -> None:
        node = self._node(index)
        with folder.opened(parts) as fd:
            found = os.fstat(fd)
            same = stat.S_IMODE(found.st_mode) == node.mode and found.st_mtime_ns == node.mtime_ns
            if not same or (os.geteuid() == 0 and (found.st_uid, found.st_gid) != (node.uid, node.gid)):
                set_attributes(fd, node)

    # ---- failures

    def _guarded(self, path: bytes, run: Callable[[], T]) -> T | None:
        """What it returns; None after an error, which is recorded. `_Stopped` where the next step would meet the same."""
        try:
            return run()
        except OSError as e:
            self._fail(path, e.errno or errno.EIO, e.strerror or str(e))
            if e.errno in _FATAL:
                raise _Stopped from None
            return None

    def _fail(self, path: bytes, number: int, reason: str, stale: bool = False) -> None:
        self._counts.fail(PushFailure(os.path.join(self._target, os.fsdecode(path)), number, reason, stale))


class _Stopped(Exception):
    """The push ends with what it has done so far."""


def _content(node: Node) -> bytes:
    """Stands for what a file holds, its extended attributes included."""
    return blake3(b"%d\0" % node.size + node.chunks + repr(node.xattrs).encode())


def _is_content(node: Node, digests: bytes) -> bool:
    """Whether these are the digests of the node's chunks. A chunk of zeros has an identity of its own."""
    if not node.size:
        return True
    left = node.size
    for number in range(node.chunk_count()):
        size = min(left, node.piece())
        left -= size
        id = node.chunk(number)
        if digests[number * ID_SIZE : (number + 1) * ID_SIZE] != (id if id != ZERO_ID else blake3(bytes(size))):
            return False
    return True
