"""The messages of /dev/fuse, in the layout of linux/fuse.h, interface 7: requests are read, answers and notices are made.

Each function makes the body of one answer; `answer` and `notice` put the header in front of it. Numbers have the byte order of the
machine. The sizes are asserted where the structures are defined, because the kernel refuses an answer of another size.
"""

from __future__ import annotations

import errno
from struct import Struct

from monarch.fs._tree.operations import Attr, Entry, StatFs

# Names of requests by opcode.
OPCODES = {
    1: "lookup", 2: "forget", 3: "getattr", 4: "setattr", 5: "readlink", 6: "symlink", 8: "mknod", 9: "mkdir", 10: "unlink", 11: "rmdir",
    12: "rename", 13: "link", 14: "open", 15: "read", 16: "write", 17: "statfs", 18: "release", 20: "fsync", 21: "setxattr", 22: "getxattr",
    23: "listxattr", 24: "removexattr", 25: "flush", 26: "init", 27: "opendir", 28: "readdir", 29: "releasedir", 30: "fsyncdir",
    31: "getlk", 32: "setlk", 33: "setlkw", 34: "access", 35: "create", 36: "interrupt", 37: "bmap", 38: "destroy", 39: "ioctl", 40: "poll",
    41: "notify_reply", 42: "batch_forget", 43: "fallocate", 44: "readdirplus", 45: "rename2", 46: "lseek", 47: "copy_file_range",
    48: "setupmapping", 49: "removemapping", 50: "syncfs", 51: "tmpfile", 52: "statx",
}  # fmt: skip
MAJOR = 7
# The oldest interface with everything that is negotiated here (Linux 5.4), and the newest one with these structures.
OLDEST, NEWEST = 31, 36
# The most bytes of one read. A buffer for requests has room for a write of the same size, as libfuse negotiates: a server may take over a
# connection that another one negotiated.
READ_BYTES = 1 << 20
BUFFER_BYTES = READ_BYTES + (64 << 10)
# Seconds that stand for "without limit": 68 years, which the clock of the kernel can represent.
FOREVER = float(2**31)

# Length, opcode, identity, inode, user, group, process; the length of extensions, padding.
REQUEST = Struct("=IIQQIIIHH")
# Length, error (negative; for a notice its kind), identity.
ANSWER = Struct("=IiQ")
# Inode, size, blocks of 512 bytes, three times in seconds, in nanoseconds, mode, links, user, group, device, size of a block, flags.
_ATTR = "QQQqqqIIIIIIIIII"
# Inode, generation, seconds for which the name is valid, seconds for the attributes, nanoseconds of both, attributes.
_ENTRY = Struct("=QQQQII" + _ATTR)
_ATTR_OUT = Struct("=QII" + _ATTR)
_DIRENT = Struct("=QQII")
_STATFS = Struct("=QQQQQIIII6I")
_OPEN = Struct("=QIi")
_INIT_IN = Struct("=IIII")
_INIT_OUT = Struct("=IIIIHHIIHHIIH11H")
# Handle, offset, size, flags of the read, lock owner, flags of the file.
READ = Struct("=QQIIQII")
INTERRUPT = FORGET = Struct("=Q")
FORGET_COUNT = Struct("=II")
FORGET_ONE = Struct("=QQ")
XATTR = Struct("=II")
OPEN_FLAGS = Struct("=II")
_INVAL_INODE = Struct("=Qqq")
_INVAL_ENTRY = Struct("=QII")
_STORE = Struct("=QQII")
assert (REQUEST.size, ANSWER.size, _ENTRY.size, _ATTR_OUT.size, _DIRENT.size) == (40, 16, 128, 104, 24)
assert (_STATFS.size, _OPEN.size, _INIT_OUT.size, READ.size) == (80, 16, 64, 40)

# Kinds of notices. The last one makes the kernel send all pending requests again (Linux 6.9).
NOTIFY_INVAL_INODE, NOTIFY_INVAL_ENTRY, NOTIFY_STORE, NOTIFY_RESEND = 2, 3, 4, 7
# Flags that are requested when a connection is negotiated.
_ASYNC_READ, _AUTO_INVAL_DATA, _READDIRPLUS, _PARALLEL_DIROPS, _MAX_PAGES, _CACHE_SYMLINKS = (
    1 << 0, 1 << 12, 1 << 13, 1 << 18, 1 << 22, 1 << 23,
)  # fmt: skip
_KEEP_CACHE = 2
_BLOCK = 4096
_NS = 1_000_000_000


def answer(identity: int, error: int = 0, size: int = 0) -> bytes:
    """The header of an answer whose body has `size` bytes; `error`: an errno, 0 for none."""
    return ANSWER.pack(ANSWER.size + size, -error, identity)


def _seconds(valid: float) -> tuple[int, int]:
    if valid >= FOREVER:
        return int(FOREVER), 0
    whole = int(valid)
    return whole, int((valid - whole) * _NS)


def _numbers(a: Attr) -> tuple[int, ...]:
    seconds, ns = divmod(a.mtime_ns, _NS)
    changed, changed_ns = divmod(a.ctime_ns, _NS) if a.ctime_ns else (seconds, ns)
    return (
        a.inode, a.size, a.blocks, seconds, seconds, changed, ns, ns, changed_ns,
        a.mode, a.nlink, a.uid, a.gid, 0, _BLOCK, 0,
    )  # fmt: skip


def entry_body(entry: Entry) -> bytes:
    """Of a look-up: without attributes the kernel keeps that there is no such name."""
    valid, valid_ns = _seconds(entry.valid)
    attr = entry.attr
    if attr is None:
        return _ENTRY.pack(0, 0, valid, 0, valid_ns, *(0,) * 17)
    kept, kept_ns = _seconds(attr.valid)
    return _ENTRY.pack(attr.inode, 0, valid, kept, valid_ns, kept_ns, *_numbers(attr))


def attr_body(attr: Attr) -> bytes:
    valid, valid_ns = _seconds(attr.valid)
    return _ATTR_OUT.pack(valid, valid_ns, 0, *_numbers(attr))


def listing_piece(entry: Entry) -> bytes:
    """One entry of a listing with attributes, with its padding."""
    attr, name = entry.attr, entry.name
    assert attr is not None
    size = len(name)
    return entry_body(entry) + _DIRENT.pack(attr.inode, entry.cookie, size, attr.mode >> 12) + name + bytes(-size % 8)


def statfs_body(found: StatFs) -> bytes:
    blocks = -(-found.size // _BLOCK)
    return _STATFS.pack(blocks, 0, 0, found.inodes, 0, _BLOCK, 255, _BLOCK, *(0,) * 7)


def open_body(handle: int, *, keep_cache: bool) -> bytes:
    return _OPEN.pack(handle, _KEEP_CACHE if keep_cache else 0, 0)


def xattr_body(value: bytes, room: int) -> bytes:
    """A value, or its size for a reader without room. `OSError` (ERANGE) where the room is too small."""
    if not room:
        return XATTR.pack(len(value), 0)
    if len(value) > room:
        raise OSError(errno.ERANGE, "the value has more bytes than the reader has room for")
    return value


def init_body(request: memoryview, *, read_ahead: int, background: int, immutable: bool) -> bytes:
    """The answer to the first request. `OSError` (EPROTO) for an interface that is older than `OLDEST`, or not of `MAJOR`."""
    major, minor, ahead, offered = _INIT_IN.unpack_from(request)
    if major != MAJOR or minor < OLDEST:
        raise OSError(errno.EPROTO, f"the kernel has the FUSE interface {major}.{minor}; {MAJOR}.{OLDEST} is the oldest that is served")
    wanted = _ASYNC_READ | _READDIRPLUS | _PARALLEL_DIROPS | _MAX_PAGES | _CACHE_SYMLINKS
    if not immutable:
        wanted |= _AUTO_INVAL_DATA
    return _INIT_OUT.pack(
        MAJOR, min(minor, NEWEST), min(ahead, read_ahead), wanted & offered, background, background * 3 // 4, READ_BYTES, 1,
        READ_BYTES // _BLOCK, 0, 0, 0, *(0,) * 12,
    )  # fmt: skip


def _notice(kind: int, *parts: bytes | memoryview) -> list[bytes | memoryview]:
    return [ANSWER.pack(ANSWER.size + sum(map(len, parts)), kind, 0), *parts]


def inval_inode(inode: int) -> list[bytes | memoryview]:
    """The kernel drops the attributes and all pages of an inode."""
    return _notice(NOTIFY_INVAL_INODE, _INVAL_INODE.pack(inode, 0, 0))


def inval_entry(parent: int, name: bytes) -> list[bytes | memoryview]:
    """The kernel drops a name, or that there is none."""
    return _notice(NOTIFY_INVAL_ENTRY, _INVAL_ENTRY.pack(parent, len(name), 0), name + b"\0")


def store(inode: int, offset: int, data: memoryview) -> list[bytes | memoryview]:
    """The kernel puts bytes into the pages of an inode that it knows."""
    return _notice(NOTIFY_STORE, _STORE.pack(inode, offset, len(data), 0), data)


def resend() -> list[bytes | memoryview]:
    return _notice(NOTIFY_RESEND)
