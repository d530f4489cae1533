"""Parts of answers as bytes: batches of several streams, each an Arrow stream, with a limit of bytes on the way in."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from monarch.telemetry._arrow import pa
from monarch.telemetry.errors import QueryError, QueryLimit

# Which table or cut of the plan a batch belongs to, in the metadata of its schema.
STREAM = b"stream"
_MAGIC, _HEAD = b"MTP1", struct.Struct("<4sI")
_SIZE = struct.Struct("<Q")
_MOST_STREAMS = 1024


class Malformed(QueryError):
    """Bytes that are no part of an answer."""


def marked(batch: Any, stream: str) -> Any:
    """The batch as one of this stream."""
    return batch.replace_schema_metadata({STREAM: stream.encode()})


def by_stream(batches: Sequence[Any]) -> dict[str, list[Any]]:
    """The batches of each stream, without the mark; `QueryError` for one that has none, or another schema than those before it."""
    streams: dict[str, list[Any]] = {}
    for batch in batches:
        marks: dict[bytes, bytes] = batch.schema.metadata or {}
        mark = marks.get(STREAM)
        if mark is None:
            raise QueryError("a batch of an answer belongs to nothing")
        plain = batch.replace_schema_metadata(None)
        stream = streams.setdefault(mark.decode(errors="replace"), [])
        if stream and not stream[0].schema.equals(plain.schema):
            raise QueryError("hosts answered with different columns: they run different versions of datafusion or of monarch-telemetry")
        stream.append(plain)
    return streams


def encode(batches: Sequence[Any]) -> bytes:
    """Batches in order; those next to each other with the same schema and mark are one Arrow stream."""
    streams: list[bytes] = []
    at = 0
    while at < len(batches):
        end, schema = at, batches[at].schema
        while end < len(batches) and batches[end].schema.equals(schema, check_metadata=True):
            end += 1
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as writer:
            for batch in batches[at:end]:
                writer.write_batch(batch)
        streams.append(sink.getvalue().to_pybytes())
        at = end
    return b"".join([_HEAD.pack(_MAGIC, len(streams)), *(_SIZE.pack(len(stream)) + stream for stream in streams)])


def stream_of(table: Any) -> Any:
    """A table as a buffer, and back: between processes that trust each other."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def table_of(buffer: Any) -> Any:
    """The table of `stream_of`; it stays in the buffer."""
    with pa.ipc.open_stream(buffer) as reader:
        return reader.read_all()


def decode(data: bytes | memoryview, limit: int) -> list[Any]:
    """The batches. `QueryLimit` beyond `limit` bytes, packed or unpacked; `Malformed` for bytes that are no part of an answer."""
    if len(data) > limit:
        raise QueryLimit("shipped bytes", limit, len(data))
    try:
        return _decoded(data, limit)
    except QueryError:
        raise
    except (pa.ArrowException, struct.error, ValueError, OSError, MemoryError, OverflowError) as error:
        raise Malformed(f"a part of an answer is not Arrow: {error}") from None


def parts_of(answers: Sequence[object], limit: int) -> tuple[list[list[Any]], int, list[int]]:
    """The batches of each answer of a collector, how many rows all of them are of, and the places of those that are no answers."""
    parts, scanned, without = list[list[Any]](), 0, list[int]()
    for place, answer in enumerate(answers):
        match answer:
            case (bytes() as data, int() as rows):
                try:
                    parts.append(decode(data, limit))
                    scanned += rows
                except Malformed:
                    without.append(place)
            case _:
                without.append(place)
    return parts, scanned, without


def _decoded(data: bytes | memoryview, limit: int) -> list[Any]:
    magic, count = _HEAD.unpack_from(data)
    if magic != _MAGIC or count > _MOST_STREAMS:
        raise ValueError("another form")
    view, at, used = memoryview(data), _HEAD.size, 0
    batches: list[Any] = []
    for _ in range(count):
        (size,) = _SIZE.unpack_from(view, at)
        at += _SIZE.size
        if size > len(view) - at:
            raise ValueError("a stream ends too early")
        with pa.ipc.open_stream(pa.py_buffer(view[at : at + size])) as reader:
            for batch in reader:
                # What is in the buffers is looked at in whole: offsets and indexes are used without a check after this.
                batch.validate(full=True)
                used += batch.nbytes
                if used > limit:
                    raise QueryLimit("shipped bytes", limit, used)
                batches.append(batch)
        at += size
    if at != len(view):
        raise ValueError("more bytes than streams")
    return batches
