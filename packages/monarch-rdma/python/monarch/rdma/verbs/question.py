"""What processes ask each other by messages before devices can reach memory, as bytes: queues to connect to, and keys of buffers."""

from __future__ import annotations

from struct import Struct, error
from typing import TYPE_CHECKING, NamedTuple

from monarch.rdma.verbs.connect_record import QueueRecord, RegionRecord

if TYPE_CHECKING:
    from collections.abc import Sequence

# The first byte of a question; 0 is a question about memory of a GPU (`_gpu.copies`).
CONNECT, EXPORT = 1, 2
_HEAD = Struct("<BI")
_BUFFER = Struct("<16sQ?")
_LENGTH = Struct("<I")
_NONE = b"\xff"

# The answers for a key: granted; a failure of the buffer, as native code packs it; or a text, if devices cannot register the memory.
GRANTED, FAILED, UNKNOWN = range(3)


class Refusal(NamedTuple):
    kind: int
    what: bytes


def pack_offers(offers: Sequence[QueueRecord]) -> bytes:
    return _pack(CONNECT, [offer.pack() for offer in offers])


def pack_accepted(accepted: Sequence[QueueRecord | None]) -> bytes:
    return _pack(CONNECT, [_NONE if one is None else one.pack() for one in accepted])


class Wanted(NamedTuple):
    """A buffer whose key is wanted; `on_device`: it describes memory of a GPU, which is what is meant."""

    id: bytes
    epoch: int
    on_device: bool = False


def pack_buffers(buffers: Sequence[Wanted]) -> bytes:
    return _pack(EXPORT, [_BUFFER.pack(*buffer) for buffer in buffers])


def pack_keys(keys: Sequence[RegionRecord | Refusal]) -> bytes:
    rows = [bytes([GRANTED]) + key.pack() if isinstance(key, RegionRecord) else bytes([key.kind]) + key.what for key in keys]
    return _pack(EXPORT, rows)


def offers(body: bytes) -> list[QueueRecord]:
    return [QueueRecord.unpack(row) for row in _unpack(CONNECT, body)]


def accepted(body: bytes) -> list[QueueRecord | None]:
    return [None if row == _NONE else QueueRecord.unpack(row) for row in _unpack(CONNECT, body)]


def buffers(body: bytes) -> list[Wanted]:
    try:
        return [Wanted(*_BUFFER.unpack(row)) for row in _unpack(EXPORT, body)]
    except error as e:
        raise ValueError(f"no buffer: {e}") from None


def keys(body: bytes) -> list[RegionRecord | Refusal]:
    return [_key(row) for row in _unpack(EXPORT, body)]


def _key(row: bytes) -> RegionRecord | Refusal:
    if not row:
        raise ValueError("an empty row")
    return RegionRecord.unpack(row[1:]) if row[0] == GRANTED else Refusal(row[0], row[1:])


def _pack(kind: int, rows: Sequence[bytes]) -> bytes:
    return _HEAD.pack(kind, len(rows)) + b"".join(_LENGTH.pack(len(row)) + row for row in rows)


def _unpack(kind: int, body: bytes) -> list[bytes]:
    """`ValueError` for bytes that are nothing of that kind."""
    rows: list[bytes] = []
    try:
        found, count = _HEAD.unpack_from(body)
        at = _HEAD.size
        for _ in range(count):
            (length,) = _LENGTH.unpack_from(body, at)
            row = body[at + _LENGTH.size : at + _LENGTH.size + length]
            at += _LENGTH.size + length
            rows.append(row)
            if at > len(body):
                break
    except error as e:
        raise ValueError(f"nothing that can be read: {e}") from None
    if found != kind or at != len(body):
        raise ValueError(f"a message of kind {found} with {len(body)} bytes, expected kind {kind} with {at}")
    return rows
