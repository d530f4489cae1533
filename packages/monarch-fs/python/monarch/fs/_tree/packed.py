"""Bytes of a bounded size, compressed where that is worth it: the envelope of tables and of their differences.

A few bytes of zstd can become gigabytes. A reader of a table therefore refuses what grows by more than `_GROWTH` and is larger than
`_SMALL`; the writer leaves such bytes uncompressed.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct

import zstandard

from monarch.fs._tree.folder import TableError

# Method, bytes before compression, bytes after compression.
_HEAD = Struct("<BQQ")
_PLAIN, _ZSTD = 0, 1
# The bytes to which any input may expand.
_SMALL = 64 << 20
# The factor by which an input may expand.
_GROWTH = 64
# The smallest and the largest window of zstd, as powers of two: decoders refuse more than 2^27 bytes.
_WINDOWS = (17, 27)
_LEVEL = 3
# Its annotation in the stub of zstandard is incomplete.
_FROM_LEVEL = "from_level"


def pack(data: bytes, base: bytes = b"", *, compress: bool = True) -> bytes:
    """The data, compressed with what the reader has already (`base`), or as they are."""
    made = data if not compress else _compressor(len(data), base).compress(data)
    if len(made) < len(data) and len(data) <= _limit(len(made)):
        return _HEAD.pack(_ZSTD, len(data), len(made)) + made
    return _HEAD.pack(_PLAIN, len(data), len(data)) + data


def unpack(data: memoryview, base: bytes = b"") -> tuple[bytes, memoryview]:
    """The data and what follows it; `TableError` for malformed ones."""
    if len(data) < _HEAD.size:
        raise TableError("the bytes are cut off")
    method, size, packed = _HEAD.unpack_from(data)
    body, rest = data[_HEAD.size : _HEAD.size + packed], data[_HEAD.size + packed :]
    if len(body) != packed:
        raise TableError(f"{len(body)} of {packed} bytes are there")
    if method == _PLAIN and size == packed:
        return bytes(body), rest
    if method != _ZSTD or size > _limit(packed):
        raise TableError(f"{size} bytes in {packed} of method {method} are refused")
    try:
        if zstandard.frame_content_size(body) != size:
            raise TableError("the size of the compressed bytes is malformed")
        return _decompressor(base).decompress(body, allow_extra_data=False), rest
    except zstandard.ZstdError as e:
        raise TableError(f"the compressed bytes are malformed: {e}") from None


def _limit(packed: int) -> int:
    return max(_SMALL, _GROWTH * packed)


def _compressor(size: int, base: bytes) -> zstandard.ZstdCompressor:
    if not base:
        return zstandard.ZstdCompressor(level=_LEVEL, write_checksum=False)
    window = min(max((size + len(base)).bit_length(), _WINDOWS[0]), _WINDOWS[1])
    from_level: Callable[..., zstandard.ZstdCompressionParameters] = getattr(zstandard.ZstdCompressionParameters, _FROM_LEVEL)
    made = from_level(_LEVEL, source_size=size, dict_size=len(base), window_log=window)
    return zstandard.ZstdCompressor(dict_data=_dictionary(base), compression_params=made)


def _decompressor(base: bytes) -> zstandard.ZstdDecompressor:
    return zstandard.ZstdDecompressor(dict_data=_dictionary(base)) if base else zstandard.ZstdDecompressor()


def _dictionary(base: bytes) -> zstandard.ZstdCompressionDict:
    return zstandard.ZstdCompressionDict(base, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
