"""Parts of answers as bytes: batches of several streams, each an Arrow stream, with a limit of bytes on the way in."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

from monarch.telemetry._arrow import pa, pc
from monarch.telemetry.errors import QueryError, QueryLimit

# The key of the table or cut of a batch, in the metadata of its schema.
STREAM = b"stream"
_MAGIC, _HEAD = b"MTP1", struct.Struct("<4sI")
_SIZE = struct.Struct("<Q")
# A batch without columns, or of nulls, may claim any number of rows: collectors have room for fewer than these.
_MOST_STREAMS, _MOST_BATCHES, _MOST_ROWS = 1024, 1 << 16, 1 << 28
# Constants of the flatbuffers of Arrow: types of messages, and positions of fields.
_DICTIONARY, _BATCH = 2, 3
_TYPE, _HEADER, _DATA, _COMPRESSION = 1, 2, 1, 3


class Malformed(QueryError):
    """Bytes that are no part of an answer."""


def marked(batch: Any, stream: str) -> Any:
    """The batch as one of this stream."""
    return batch.replace_schema_metadata({STREAM: stream.encode()})


def by_stream(batches: Sequence[Any]) -> dict[str, list[Any]]:
    """The batches of each stream, without the mark; `Malformed` for one that has none, or another schema than those before it."""
    streams: dict[str, list[Any]] = {}
    for batch in batches:
        marks: dict[bytes, bytes] = batch.schema.metadata or {}
        mark = marks.get(STREAM)
        if mark is None:
            raise Malformed("a batch of an answer belongs to nothing")
        plain = batch.replace_schema_metadata(None)
        stream = streams.setdefault(mark.decode(errors="replace"), [])
        if stream and not stream[0].schema.equals(plain.schema):
            raise Malformed("hosts answered with different columns: they run different versions of datafusion or of monarch-telemetry")
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
    """The batches. `QueryLimit` beyond `limit` bytes; `Malformed` for bytes that are no part of an answer, or that unpack to more."""
    if len(data) > limit:
        raise QueryLimit("shipped bytes", limit, len(data))
    try:
        return _decoded(data, limit)
    except QueryError:
        raise
    except (pa.ArrowException, struct.error, ValueError, OSError, MemoryError, OverflowError) as error:
        raise Malformed(f"a part of an answer is not Arrow: {error}") from None


def parts_of(answers: Sequence[object], limit: int, check: Callable[[list[Any]], None]) -> tuple[list[list[Any]], int, list[int]]:
    """The batches of each answer of a collector, how many rows all of them are of, and the places of those that are no answers.

    `check` raises `Malformed` for batches that are none either.
    """
    parts, scanned, without = list[list[Any]](), 0, list[int]()
    for place, answer in enumerate(answers):
        match answer:
            case (bytes() as data, int() as rows) if is_number(rows):
                try:
                    batches = decode(data, limit)
                    check(batches)
                except (Malformed, QueryLimit):
                    without.append(place)
                else:
                    parts.append(batches)
                    scanned += rows
            case _:
                without.append(place)
    return parts, scanned, without


def is_number(rows: int) -> bool:
    """Whether this is a number of rows that a host may have."""
    return 0 <= rows < 1 << 48


def _decoded(data: bytes | memoryview, limit: int) -> list[Any]:
    magic, count = _HEAD.unpack_from(data)
    if magic != _MAGIC or count > _MOST_STREAMS:
        raise ValueError("another form")
    view, at, used, rows = memoryview(data), _HEAD.size, 0, 0
    batches: list[Any] = []
    for _ in range(count):
        (size,) = _SIZE.unpack_from(view, at)
        at += _SIZE.size
        if size > len(view) - at:
            raise ValueError("a stream ends too early")
        stream = pa.py_buffer(view[at : at + size])
        _check_plain(stream, _MOST_BATCHES - len(batches))
        with pa.ipc.open_stream(stream) as reader:
            for batch in reader:
                # All buffers are validated here: offsets and indexes are used without a check afterwards.
                batch.validate(full=True)
                used, rows = used + batch.nbytes + _shared(batch), rows + batch.num_rows
                if used > limit or rows > _MOST_ROWS:
                    raise ValueError(f"{rows} rows of {used} bytes in {len(batches) + 1} batches, more than a host may send")
                batches.append(batch)
        at += size
    if at != len(view):
        raise ValueError("more bytes than streams")
    return batches


def _check_plain(stream: Any, most: int) -> None:
    """`ValueError` for a stream of more than `most` messages beside its schema, or with buffers that are compressed, as no part has
    them: a few bytes may be unpacked to any number.
    """
    for number, message in enumerate(pa.ipc.MessageReader.open_stream(stream)):
        if number > most:
            raise ValueError(f"{number} batches, more than a host may send")
        data = memoryview(message.metadata)
        (root,) = struct.unpack_from("<I", data)
        kind = _field(data, root, _TYPE)
        header = _table(data, root, _HEADER)
        if kind is not None and data[kind] == _DICTIONARY and header is not None:
            header = _table(data, header, _DATA)
        elif kind is None or data[kind] != _BATCH:
            continue
        if header is None or _field(data, header, _COMPRESSION) is not None:
            raise ValueError("its buffers are compressed")


def _field(data: memoryview, table: int, place: int) -> int | None:
    """Where a field of a table of a flatbuffer is; None where the table has none."""
    (back,) = struct.unpack_from("<i", data, table)
    fields = table - back
    if fields < 0:
        raise ValueError("a table without fields")
    (size,) = struct.unpack_from("<H", data, fields)
    at = 4 + 2 * place
    (offset,) = struct.unpack_from("<H", data, fields + at) if at + 2 <= size else (0,)
    return table + offset if offset else None


def _table(data: memoryview, table: int, place: int) -> int | None:
    at = _field(data, table, place)
    return None if at is None else at + struct.unpack_from("<I", data, at)[0]


def _shared(batch: Any) -> int:
    """Bytes of texts that views of several rows share: each row has them of its own where the texts are copied."""
    used = 0
    for column in batch.columns:
        if column.type in (pa.string_view(), pa.binary_view()):
            # A view has four numbers, of which the first one is the length.
            numbers = pa.Array.from_buffers(pa.int32(), 4 * len(column), [None, column.buffers()[1]], offset=4 * column.offset)
            lengths = pc.list_element(pa.FixedSizeListArray.from_arrays(numbers, 4), 0)
            used += pc.sum(lengths.filter(column.is_valid())).as_py() or 0
    return used
