"""The messages of /dev/fuse against the layout of linux/fuse.h, by offsets."""

from __future__ import annotations

import errno
import struct

import pytest

from monarch.fs._kernel import fuse_protocol as fuse
from monarch.fs._tree.operations import Attr, Entry, StatFs

ATTR = Attr(7, 0o100644, 2, 1000, 1001, 12345, 32, 1_700_000_000_123_456_789, ctime_ns=1_700_000_001_000_000_002)


def _u64(body: bytes, at: int) -> int:
    return struct.unpack_from("=Q", body, at)[0]


def _u32(body: bytes, at: int) -> int:
    return struct.unpack_from("=I", body, at)[0]


def _init(major: int = 7, minor: int = 41, ahead: int = 1 << 17, flags: int = 0xFFFFFFFF) -> memoryview:
    return memoryview(struct.pack("=IIIII11I", major, minor, ahead, flags, 0, *(0,) * 11))


def test_attributes_lie_where_the_kernel_reads_them() -> None:
    body = fuse.entry_body(Entry(b"name", ATTR, 1.5))
    assert (_u64(body, 0), _u64(body, 8), _u64(body, 16), _u64(body, 24)) == (7, 0, 1, int(fuse.FOREVER))
    assert (_u32(body, 32), _u32(body, 36)) == (500_000_000, 0)
    attr = body[40:]
    assert [_u64(attr, at) for at in range(0, 48, 8)] == [7, 12345, 32, 1_700_000_000, 1_700_000_000, 1_700_000_001]
    assert [_u32(attr, at) for at in range(48, 60, 4)] == [123_456_789, 123_456_789, 2]
    assert [_u32(attr, at) for at in range(60, 88, 4)] == [0o100644, 2, 1000, 1001, 0, 4096, 0]
    assert fuse.attr_body(ATTR)[16:] == attr


def test_times_before_1970_round_down() -> None:
    attr = fuse.attr_body(ATTR._replace(mtime_ns=-1, ctime_ns=0))[16:]
    assert struct.unpack_from("=q", attr, 32)[0] == -1 and _u32(attr, 52) == 999_999_999


def test_missing_name_has_inode_zero() -> None:
    body = fuse.entry_body(Entry(b"absent", None))
    assert _u64(body, 0) == 0 and _u64(body, 16) == int(fuse.FOREVER) and len(body) == 128


@pytest.mark.parametrize("name", [b"a", b"1234567", b"12345678", b"\xff" * 255])
def test_entries_of_a_listing_are_aligned(name: bytes) -> None:
    piece = fuse.listing_piece(Entry(name, ATTR, cookie=99))
    assert len(piece) % 8 == 0
    assert (_u64(piece, 128), _u64(piece, 136), _u32(piece, 144), _u32(piece, 148)) == (7, 99, len(name), 0o10)
    assert piece[152 : 152 + len(name)] == name and not piece[152 + len(name) :].strip(b"\0")


def test_negotiation_takes_what_the_kernel_offers() -> None:
    body = fuse.init_body(_init(), read_ahead=1 << 20, background=64, immutable=True)
    assert (_u32(body, 0), _u32(body, 4), _u32(body, 8)) == (7, fuse.NEWEST, 1 << 17)
    assert not _u32(body, 12) & 1 << 12
    assert struct.unpack_from("=HH", body, 16) == (64, 48) and len(body) == 64
    live = fuse.init_body(_init(minor=33, flags=1 << 12), read_ahead=4096, background=64, immutable=False)
    assert (_u32(live, 4), _u32(live, 8), _u32(live, 12)) == (33, 4096, 1 << 12)


@pytest.mark.parametrize(("major", "minor"), [(7, 30), (8, 0), (6, 40)])
def test_another_interface_is_refused_with_its_number(major: int, minor: int) -> None:
    with pytest.raises(OSError, match=rf"{major}\.{minor}") as caught:
        fuse.init_body(_init(major, minor), read_ahead=1, background=1, immutable=True)
    assert caught.value.errno == errno.EPROTO


def test_extended_attributes_have_a_size_or_fail() -> None:
    assert fuse.xattr_body(b"value", 0) == struct.pack("=II", 5, 0)
    assert fuse.xattr_body(b"value", 5) == b"value" and fuse.xattr_body(b"", 5) == b""
    with pytest.raises(OSError, match="more bytes") as caught:
        fuse.xattr_body(b"value", 4)
    assert caught.value.errno == errno.ERANGE


def test_headers_have_the_whole_length() -> None:
    assert fuse.answer(5, errno.ENOENT) == struct.pack("=IiQ", 16, -errno.ENOENT, 5)
    assert fuse.answer(5, 0, 100) == struct.pack("=IiQ", 116, 0, 5)
    for parts in (fuse.inval_inode(3), fuse.inval_entry(1, b"name"), fuse.store(2, 4096, memoryview(b"data")), fuse.resend()):
        size, kind, identity = struct.unpack("=IiQ", parts[0])
        assert (size, identity) == (sum(map(len, parts)), 0) and kind in (2, 3, 4, 7)
    assert fuse.inval_entry(1, b"name")[2] == b"name\0"


def test_size_of_a_tree_in_blocks() -> None:
    body = fuse.statfs_body(StatFs(4097, 9))
    assert [_u64(body, at) for at in range(0, 40, 8)] == [2, 0, 0, 9, 0]
    assert [_u32(body, at) for at in range(40, 52, 4)] == [4096, 255, 4096]
