"""The identities of the chunks of files: BLAKE3 of each piece, read by native threads.

A piece of zeros has `ZERO_ID`. The holes of large sparse files are skipped, so that a disk image of terabytes costs what is written in it.
A file that is written all the time is read once more with the size that it had: its pieces may never have been there together, and a
host that asks for one later gets an error that names the file.

The next files are read while the caller works on the last ones: half of the time of a first look is Python.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import NamedTuple

from monarch.extension.directory_tree import Attributes, blake3, digest_files, parse_record
from monarch.fs._tree.folder import MAX_FILE_BYTES, chunk_count
from monarch.fs._tree.node import ID_SIZE, PIECE_BYTES, WHOLE_BYTES, ZERO_ID

# Files of one call: their results are in memory at the same time.
_FILES_AT_ONCE = 1024


class Content(NamedTuple):
    """What a file held when it was read."""

    attributes: Attributes
    chunks: bytes
    # False: the file changed in the meantime.
    settled: bool
    # False: the file has no extended attributes.
    has_xattrs: bool


def read_contents(paths: Sequence[bytes], sizes: Sequence[tuple[int, int]]) -> Iterator[Content | OSError]:
    """The contents of files, in their order; `sizes` has size and blocks of each as they were listed."""
    if len(paths) <= _FILES_AT_ONCE:
        yield from _read_some(paths, sizes)
        return
    with ThreadPoolExecutor(1, "monarch-contents") as reader:
        last = None
        for at in range(0, len(paths), _FILES_AT_ONCE):
            until = at + _FILES_AT_ONCE
            following = reader.submit(_read_some, paths[at:until], sizes[at:until])
            if last is not None:
                yield from last.result()
            last = following
        if last is not None:
            yield from last.result()


def _read_some(paths: Sequence[bytes], sizes: Sequence[tuple[int, int]]) -> list[Content | OSError]:
    results: list[Content | OSError] = []
    sparse = [_is_sparse(*size) for size in sizes]
    read_files = iter(digest_files([path for path, slow in zip(paths, sparse, strict=True) if not slow], piece=PIECE_BYTES))
    for path, slow in zip(paths, sparse, strict=True):
        read = None if slow else next(read_files)
        if isinstance(read, OSError):
            results.append(read)
            continue
        if read is not None and read.settled:
            attributes = parse_record(read.record)
            digests = read.digests if attributes.size else b""
            if len(digests) == ID_SIZE * chunk_count(attributes.size):
                results.append(Content(attributes, _with_zeros(digests, attributes.size), True, read.has_xattrs))
                continue
        results.append(_read_slowly(path))
    return results


def _is_sparse(size: int, blocks: int) -> bool:
    return size > PIECE_BYTES and 512 * blocks < size - PIECE_BYTES


@lru_cache(4096)
def _zero_digest(size: int) -> bytes:
    return blake3(bytes(size))


def _with_zeros(digests: bytes, size: int) -> bytes:
    piece = min(size, PIECE_BYTES)
    if size <= WHOLE_BYTES:
        return ZERO_ID if digests == _zero_digest(size) else digests
    zero, last = _zero_digest(piece), _zero_digest(size % PIECE_BYTES or piece)
    if zero not in digests and last not in digests:
        return digests
    pieces = [digests[at : at + ID_SIZE] for at in range(0, len(digests), ID_SIZE)]
    return b"".join(ZERO_ID if found == (last if number == len(pieces) - 1 else zero) else found for number, found in enumerate(pieces))


def _read_slowly(path: bytes) -> Content | OSError:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as e:
        return e
    try:
        before = os.fstat(fd)
        if not stat.S_ISREG(before.st_mode):
            return OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
        if before.st_size > MAX_FILE_BYTES:
            return OSError(errno.EFBIG, f"it has more than {MAX_FILE_BYTES} bytes", path)
        size, chunks = _pieces(fd, before.st_size)
        after = os.fstat(fd)
    except OSError as e:
        return e
    finally:
        os.close(fd)
    attributes = Attributes(
        after.st_mode,
        after.st_nlink,
        after.st_uid,
        after.st_gid,
        after.st_dev,
        after.st_ino,
        size,
        after.st_blocks,
        after.st_mtime_ns,
        after.st_ctime_ns,
    )
    same = (before.st_mtime_ns, before.st_ctime_ns, before.st_size) == (after.st_mtime_ns, after.st_ctime_ns, after.st_size)
    return Content(attributes, chunks, same and size == before.st_size, True)


def _pieces(fd: int, size: int) -> tuple[int, bytes]:
    """The size, which is less if the file became shorter, and the identities of the pieces."""
    step = size if size <= WHOLE_BYTES else PIECE_BYTES
    found: list[bytes] = []
    at = data = 0
    while at < size:
        most = min(step, size - at)
        if data < at + most:
            data = _next_data(fd, max(at, data), size)
        if data >= at + most:
            # Many pieces in one step: a hole may have terabytes.
            count = max(1, (min(data, size) - at) // step)
            found.append(ZERO_ID * count)
            at += count * step
            continue
        piece = _read_all(fd, at, most)
        if len(piece) < most:
            return _pieces(fd, at + len(piece))
        found.append(ZERO_ID if not piece.strip(b"\0") else blake3(piece))
        at += most
        data = at
    return size, b"".join(found)


def _next_data(fd: int, at: int, size: int) -> int:
    try:
        return os.lseek(fd, at, os.SEEK_DATA)
    except OSError as e:
        # ENXIO: no data follows. A file system without holes: EINVAL.
        return size if e.errno == errno.ENXIO else at


def _read_all(fd: int, at: int, size: int) -> bytes:
    parts: list[bytes] = []
    while size:
        part = os.pread(fd, size, at)
        if not part:
            break
        parts.append(part)
        at, size = at + len(part), size - len(part)
    return b"".join(parts)
