"""The entries of a directory with their attributes, in the packed format of the native module (see rust/files/src/listing.rs)."""

from __future__ import annotations

from struct import Struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NamedTuple
else:
    from collections import namedtuple

_COUNT = 4
_RECORD = Struct("<4I4Q2q")
RECORD_BYTES = _RECORD.size

if TYPE_CHECKING:

    class Attributes(NamedTuple):
        """The result of `lstat` for a name: times in nanoseconds since the epoch, `size` in bytes, `blocks` of 512 bytes.

        `links`, `size`, `blocks` and `ctime_ns` of a directory are 0, because they change with the content below it.
        """

        mode: int
        links: int
        uid: int
        gid: int
        device: int
        inode: int
        size: int
        blocks: int
        mtime_ns: int
        ctime_ns: int
else:
    Attributes = namedtuple("Attributes", ("mode", "links", "uid", "gid", "device", "inode", "size", "blocks", "mtime_ns", "ctime_ns"))


def parse_listing(listing: bytes) -> dict[bytes, Attributes]:
    """The entries of a directory by their names, sorted. `ValueError` for a malformed listing."""
    count = int.from_bytes(listing[:_COUNT], "little")
    names_at = _COUNT + count * RECORD_BYTES
    names = listing[names_at:].split(b"\0")
    if len(listing) < names_at or len(names) != count + 1 or names[-1]:
        raise ValueError("the bytes are no listing of a directory")
    records = _RECORD.iter_unpack(memoryview(listing)[_COUNT:names_at])
    # Each name has a NUL after it, so the last part is empty.
    return dict(zip(names, map(Attributes._make, records), strict=False))


def parse_record(record: bytes) -> Attributes:
    """The attributes of a `FileDigest`."""
    return Attributes._make(_RECORD.unpack(record))
