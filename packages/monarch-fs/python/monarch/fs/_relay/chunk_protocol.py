"""The bytes of a request for chunks and of its answer, read by bounds and never unpickled.

A request names the tree and up to `MOST_IDS` chunks. The answer has a record for each of them: a content, a failure, or nothing yet, which
is to be asked again. Contents follow the records, together at most about `ANSWER_BYTES`, compressed by zstd where a sample shows that
it pays and the other side is on another machine. In the place of a large content there may be a handle of memory (`offer.py`).
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import zstandard

from monarch.fs._relay.failure import FetchFailure
from monarch.fs._tree.node import ID_SIZE

MOST_IDS = 512
# Bytes of contents in an answer after which no further content is added.
ANSWER_BYTES = 1 << 20
# The most bytes of an answer, compressed or not: the largest content and others.
MOST_BYTES = 4 << 20
_REQUEST = struct.Struct("<4sBHH")
_ANSWER = struct.Struct("<4sBBHI")
_RECORD = struct.Struct("<32sBIH")
_REQUEST_MARK, _ANSWER_MARK = b"MFQ1", b"MFA1"
_CONTENT, _FAILURE, _PENDING, _OFFERED = 0, 1, 2, 3
_URGENT, _COMPRESS, _OFFER, _BULK = 1, 2, 4, 8
_STALE, _FINAL = 1, 2
_SAMPLE = 32 << 10
# The most bytes of a handle of memory, which contains the name of its host.
_MOST_HANDLE = 8 << 10


class ChunkProtocolError(ValueError):
    """Malformed bytes of a request or an answer; the text names the field."""


class ChunkRequest(NamedTuple):
    tree: str
    ids: tuple[bytes, ...]
    urgent: bool = False
    # The answer may be compressed: sender and receiver are on different machines.
    compress: bool = False
    # Large contents may be offered.
    offer: bool = False
    # Pieces of large files, which the peer fetches in the order of the chain.
    bulk: bool = False


class ChunkAnswer(NamedTuple):
    """What came; an id in neither is to be asked again. `known` is false where the other side has not joined the tree."""

    contents: Mapping[bytes, bytes | memoryview]
    failures: Mapping[bytes, FetchFailure]
    known: bool = True
    # Sizes and handles of offered contents.
    offered: Mapping[bytes, tuple[int, bytes]] = MappingProxyType({})


def encode_request(request: ChunkRequest) -> bytes:
    tree = request.tree.encode()
    flags = request.urgent * _URGENT | request.compress * _COMPRESS | request.offer * _OFFER | request.bulk * _BULK
    return b"".join((_REQUEST.pack(_REQUEST_MARK, flags, len(tree), len(request.ids)), tree, *request.ids))


def decode_request(raw: bytes) -> ChunkRequest:
    """`ChunkProtocolError` for everything that `encode_request` does not make."""
    if len(raw) < _REQUEST.size:
        raise ChunkProtocolError(f"a request of {len(raw)} bytes")
    mark, flags, length, count = _REQUEST.unpack_from(raw)
    start = _REQUEST.size + length
    if mark != _REQUEST_MARK or flags & ~(_URGENT | _COMPRESS | _OFFER | _BULK):
        raise ChunkProtocolError("the mark of the request")
    if not 0 < count <= MOST_IDS or len(raw) != start + count * ID_SIZE:
        raise ChunkProtocolError(f"a request of {len(raw)} bytes for {count} chunks")
    try:
        tree = raw[_REQUEST.size : start].decode()
    except UnicodeDecodeError as e:
        raise ChunkProtocolError("the name of the tree") from e
    ids = tuple(raw[at : at + ID_SIZE] for at in range(start, len(raw), ID_SIZE))
    return ChunkRequest(tree, ids, *(bool(flags & flag) for flag in (_URGENT, _COMPRESS, _OFFER, _BULK)))


def encode_answer(answer: ChunkAnswer, *, compress: bool = False) -> bytes:
    records: list[bytes] = []
    size = 0
    for id, content in answer.contents.items():
        records.append(_RECORD.pack(id, _CONTENT, len(content), 0))
        size += len(content)
    for id, failure in answer.failures.items():
        reason = failure.reason.encode(errors="backslashreplace")[:1000]
        flags = failure.stale * _STALE | failure.final * _FINAL
        records.append(_RECORD.pack(id, _FAILURE, max(failure.errno, 0) & 0xFFFF | flags << 16, len(reason)) + reason)
    for id, (length, handle) in answer.offered.items():
        records.append(_RECORD.pack(id, _OFFERED, length, len(handle)) + handle)
    parts: list[bytes | memoryview] = list(answer.contents.values())
    packed = _compressed(parts, size) if compress and size else None
    head = _ANSWER.pack(_ANSWER_MARK, answer.known, packed is not None, len(records), size)
    return b"".join((head, *records, *(parts if packed is None else (packed,))))


def decode_answer(raw: bytes) -> ChunkAnswer:
    """`ChunkProtocolError` for everything malformed; memory at most `MOST_BYTES` beyond the bytes. Contents are not verified yet."""
    if len(raw) < _ANSWER.size:
        raise ChunkProtocolError(f"an answer of {len(raw)} bytes")
    mark, known, packed, count, size = _ANSWER.unpack_from(raw)
    if mark != _ANSWER_MARK or known > 1 or packed > 1:
        raise ChunkProtocolError("the mark of the answer")
    if count > MOST_IDS or size > MOST_BYTES:
        raise ChunkProtocolError(f"an answer with {count} chunks of {size} bytes")
    at = _ANSWER.size
    sizes: list[tuple[bytes, int]] = []
    failures: dict[bytes, FetchFailure] = {}
    offered: dict[bytes, tuple[int, bytes]] = {}
    for _ in range(count):
        if len(raw) < at + _RECORD.size:
            raise ChunkProtocolError("the records of the answer")
        id, kind, value, length = _RECORD.unpack_from(raw, at)
        at += _RECORD.size
        if kind == _CONTENT:
            sizes.append((id, value))
        elif kind == _FAILURE:
            if value & 0xFFFF not in errno.errorcode or len(raw) < at + length:
                raise ChunkProtocolError(f"a failure with the errno {value & 0xFFFF} and a reason of {length} bytes")
            reason = raw[at : at + length].decode(errors="replace")
            at += length
            failures[id] = FetchFailure(value & 0xFFFF, reason, bool(value >> 16 & _STALE), bool(value >> 16 & _FINAL))
        elif kind == _OFFERED:
            if not 0 < value <= MOST_BYTES or not 0 < length <= _MOST_HANDLE or len(raw) < at + length:
                raise ChunkProtocolError(f"a handle of {length} bytes for {value} bytes")
            offered[id] = value, raw[at : at + length]
            at += length
        elif kind != _PENDING:
            raise ChunkProtocolError(f"a record of the kind {kind}")
    data = memoryview(raw)[at:]
    if packed:
        try:
            data = memoryview(zstandard.ZstdDecompressor(max_window_size=1 << 23).decompress(bytes(data), max_output_size=max(size, 1)))
        except (zstandard.ZstdError, MemoryError) as e:
            raise ChunkProtocolError(f"the compressed contents: {e}") from e
    if len(data) != size or sum(length for _, length in sizes) != size:
        raise ChunkProtocolError(f"contents of {len(data)} bytes, not {size}")
    contents: dict[bytes, bytes | memoryview] = {}
    at = 0
    for id, length in sizes:
        contents[id] = data[at : at + length]
        at += length
    return ChunkAnswer(contents, failures, bool(known), offered)


def _compressed(parts: Sequence[bytes | memoryview], size: int) -> bytes | None:
    compressor = zstandard.ZstdCompressor(level=1)
    sample = bytearray()
    for part in parts:
        sample += part[: max(_SAMPLE // len(parts), 256)]
    if len(compressor.compress(bytes(sample))) > len(sample) * 0.8:
        return None
    packed = compressor.compress(b"".join(parts))
    # The frame contains the size of the content, by which the reader limits its memory.
    return packed if len(packed) < size else None
