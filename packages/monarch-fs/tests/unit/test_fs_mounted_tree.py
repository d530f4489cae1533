"""The answers of a mounted tree of one generation."""

from __future__ import annotations

import asyncio
import errno
import stat
from pathlib import Path

import pytest
from fs_edited_tree import Chunks, EditedTree, answer, error_of

from monarch.fs._daemon.mounted_tree import MountedTree
from monarch.fs._tree.node import PIECE_BYTES
from monarch.fs._tree.operations import ROOT, Attr

BIG = b"".join(bytes([n]) * 65536 for n in range(1, 41)) + b"end"


@pytest.fixture
def source() -> EditedTree:
    tree = EditedTree(Chunks())
    tree.directory(b"d")
    tree.file(b"d/f", b"hello", mode=0o640, mtime_ns=12345, blocks=8, xattrs=((b"user.colour", b"blue"),))
    tree.hard_link(b"d/g", b"d/f")
    tree.file(b"big", BIG)
    tree.file(b"holes", bytes(2 * PIECE_BYTES) + b"x" + bytes(PIECE_BYTES - 1) + b"y")
    tree.link(b"link", b"d/f")
    tree.file(b"empty", b"")
    tree.add(b"secret", tree.nodes[tree.paths[b"empty"]]._replace(size=9, readable=False))
    return tree


@pytest.fixture
def mounted(source: EditedTree, tmp_path: Path) -> MountedTree:
    return MountedTree(source.table(), source.chunks, tmp_path / "state")


def inode(mounted: MountedTree, path: bytes) -> int:
    found = mounted.inode_of(path)
    assert found is not None
    return found


def test_attributes_are_those_of_the_table(mounted: MountedTree) -> None:
    entry = mounted.lookup(inode(mounted, b"d"), b"f")
    number = inode(mounted, b"d/f")
    assert entry.attr == Attr(number, stat.S_IFREG | 0o640, 2, 7, 8, 5, 8, 12345, float("inf"), 12345)
    assert entry.valid == float("inf")
    assert mounted.attr(ROOT).mode == stat.S_IFDIR | 0o755
    assert mounted.attr(inode(mounted, b"link")).mode == stat.S_IFLNK | 0o777


def test_owner_replaces_that_of_the_table(source: EditedTree, tmp_path: Path) -> None:
    mounted = MountedTree(source.table(), source.chunks, tmp_path, owner=(1, 2))
    assert mounted.attr(ROOT)[3:5] == (1, 2)


def test_hard_links_have_one_inode(mounted: MountedTree) -> None:
    assert inode(mounted, b"d/f") == inode(mounted, b"d/g")


def test_absent_name_is_an_entry_without_attributes(mounted: MountedTree) -> None:
    entry = mounted.lookup(ROOT, b"no")
    assert entry.attr is None and entry.valid == float("inf")
    assert mounted.inode_of(b"no") is mounted.inode_of(b"big/no") is None


def test_wrong_kind_of_inode_is_refused(mounted: MountedTree) -> None:
    file, directory = inode(mounted, b"d/f"), inode(mounted, b"d")
    assert error_of(mounted.lookup, file, b"x") == errno.ENOTDIR
    assert error_of(lambda: next(mounted.readdir(file, 0))) == errno.ENOTDIR
    assert error_of(mounted.read, directory, 0, 1) == errno.EISDIR
    assert error_of(mounted.readlink, file) == errno.EINVAL
    assert error_of(mounted.lookup, ROOT, b"n" * 256) == errno.ENAMETOOLONG
    for call in (mounted.attr, mounted.readlink, mounted.listxattr):
        assert error_of(call, 12345) == errno.ESTALE
    assert mounted.readlink(inode(mounted, b"link")) == b"d/f"


def test_extended_attributes_of_users_are_served(mounted: MountedTree) -> None:
    number = inode(mounted, b"d/g")
    assert mounted.listxattr(number) == [b"user.colour"]
    assert mounted.getxattr(number, b"user.colour") == b"blue"
    assert error_of(mounted.getxattr, number, b"user.other") == errno.ENODATA
    assert mounted.listxattr(ROOT) == []


def test_file_system_has_the_size_of_the_tree(mounted: MountedTree, source: EditedTree) -> None:
    assert mounted.statfs() == (source.table().total_bytes(), 8)


def test_listing_goes_on_after_a_cookie(mounted: MountedTree) -> None:
    every = list(mounted.readdir(ROOT, 0))
    assert {entry.name for entry in every} == {b"d", b"big", b"holes", b"link", b"empty", b"secret"}
    for place, entry in enumerate(every):
        assert list(mounted.readdir(ROOT, entry.cookie)) == every[place + 1 :]
        assert entry.attr == mounted.lookup(ROOT, entry.name).attr


def test_reads_are_those_of_the_content(mounted: MountedTree) -> None:
    big, holes = inode(mounted, b"big"), inode(mounted, b"holes")
    for start in (0, 1, PIECE_BYTES - 1, PIECE_BYTES, 2 * PIECE_BYTES + 7, len(BIG) - 2, len(BIG), len(BIG) + 5):
        for size in (0, 1, 4096, PIECE_BYTES, len(BIG)):
            assert answer(mounted.read(big, start, size)) == BIG[start : start + size]
    assert answer(mounted.read(holes, PIECE_BYTES - 2, PIECE_BYTES + 4)) == bytes(PIECE_BYTES + 2) + b"x\0"
    assert answer(mounted.read(holes, 3 * PIECE_BYTES - 1, 9)) == b"\0y"
    assert answer(mounted.read(inode(mounted, b"empty"), 0, 9)) == b""


def test_chunks_of_one_read_are_requested_together(mounted: MountedTree, source: EditedTree) -> None:
    source.chunks.elsewhere = set(source.chunks.contents)
    assert answer(mounted.read(inode(mounted, b"big"), 0, len(BIG))) == BIG
    assert source.chunks.most_started == 3
    status = mounted.status()
    assert (status.faults, status.reads, status.bytes_read, status.bytes_fetched) == (3, 1, len(BIG), len(BIG))


def test_holes_need_no_chunk(mounted: MountedTree, source: EditedTree) -> None:
    source.chunks.elsewhere = set(source.chunks.contents)
    assert answer(mounted.read(inode(mounted, b"holes"), 0, 2 * PIECE_BYTES)) == bytes(2 * PIECE_BYTES)
    assert mounted.status().faults == 0


def test_unreadable_file_gives_eacces(mounted: MountedTree) -> None:
    assert error_of(mounted.read, inode(mounted, b"secret"), 0, 1) == errno.EACCES
    error = mounted.status().last_error
    assert error is not None and error[1:3] == ("secret", errno.EACCES)


def test_stale_file_is_listed_until_a_read_succeeds(mounted: MountedTree, source: EditedTree) -> None:
    id = source.nodes[source.paths[b"d/f"]].chunk(0)
    source.chunks.elsewhere.add(id)
    source.chunks.failures[id] = OSError(errno.ESTALE, "the file changed")
    assert error_of(mounted.read, inode(mounted, b"d/f"), 0, 5) == errno.EIO
    assert mounted.status().stale == ["d/f"]
    source.chunks.failures.clear()
    assert answer(mounted.read(inode(mounted, b"d/f"), 0, 5)) == b"hello"
    assert mounted.status().stale == []


@pytest.mark.parametrize("error", [OSError(errno.ECONNRESET, "source left"), TimeoutError(errno.ETIMEDOUT, "no answer in 60 s")])
def test_failed_read_gives_eio_with_its_reason(mounted: MountedTree, source: EditedTree, error: OSError) -> None:
    id = source.nodes[source.paths[b"big"]].chunk(1)
    source.chunks.failures[id] = error
    source.chunks.elsewhere = set(source.chunks.contents)
    assert error_of(mounted.read, inode(mounted, b"big"), 0, len(BIG)) == errno.EIO
    status = mounted.status()
    assert status.errors == 1 and status.stale == [] and source.chunks.started == 0
    assert status.last_error is not None and status.last_error[:4] == (1, "big", errno.EIO, error.strerror)
    assert answer(mounted.read(inode(mounted, b"big"), 0, 10)) == BIG[:10]


def test_short_chunk_is_an_error_on_read(mounted: MountedTree, source: EditedTree) -> None:
    id = source.nodes[source.paths[b"d/f"]].chunk(0)
    source.chunks.contents[id] = b"hell"
    assert error_of(mounted.read, inode(mounted, b"d/f"), 0, 5) == errno.EIO


def test_waiting_read_does_not_stop_others(mounted: MountedTree, source: EditedTree) -> None:
    gate: asyncio.Event
    id = source.nodes[source.paths[b"d/f"]].chunk(0)
    source.chunks.elsewhere.add(id)

    async def both() -> None:
        nonlocal gate
        gate = asyncio.Event()
        plain = source.chunks.fetch

        async def later(id: bytes, offset: int, size: int) -> bytes:
            await gate.wait()
            return await plain(id, offset, size)

        source.chunks.fetch = later  # type: ignore[method-assign]
        waiting = asyncio.create_task(mounted.read(inode(mounted, b"d/f"), 0, 5))  # type: ignore[arg-type]
        assert await mounted.read(inode(mounted, b"big"), 0, 3) == BIG[:3]
        assert not waiting.done()
        gate.set()
        assert await waiting == b"hello"

    asyncio.run(both())


def test_known_inodes_have_the_wanted_chunks(mounted: MountedTree, source: EditedTree) -> None:
    hello, second = source.nodes[source.paths[b"d/f"]].chunk(0), source.nodes[source.paths[b"big"]].chunk(1)
    assert list(mounted.known([hello, second])) == []
    mounted.lookup(inode(mounted, b"d"), b"g")
    mounted.lookup(ROOT, b"big")
    assert set(mounted.known([hello, second])) == {(inode(mounted, b"d/f"), 0, hello), (inode(mounted, b"big"), PIECE_BYTES, second)}
    mounted.forget(inode(mounted, b"big"), 1)
    assert list(mounted.known([second])) == []


def test_listing_has_the_attributes_of_single_requests(source: EditedTree, tmp_path: Path) -> None:
    for owner in (None, (1, 2)):
        one, other = (MountedTree(source.table(), source.chunks, tmp_path / f"{owner}{n}", owner=owner) for n in range(2))
        for directory in (ROOT, inode(one, b"d")):
            entries = list(one.readdir(directory, 0))
            assert len(entries) > 1
            for entry in entries:
                assert entry.attr is not None and entry.attr == other.attr(entry.attr.inode) == other.lookup(directory, entry.name).attr
