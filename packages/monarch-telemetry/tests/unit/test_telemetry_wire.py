"""Parts of answers as bytes, and who answered."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monarch.telemetry import QueryError, QueryLimit
from monarch.telemetry._sql import wire
from monarch.telemetry._sql.coverage import Coverage, Missing, Stage
from monarch.telemetry._sql.limits import memory_limit

ONE = wire.marked(pa.RecordBatch.from_pydict({"x": [1, None, 3], "d": pa.array(["p", "q", "p"]).dictionary_encode()}), "0")
OTHER = wire.marked(pa.RecordBatch.from_pydict({"x": [1, None, 3], "d": pa.array(["r", "q", "r"]).dictionary_encode()}), "0")
NAMED = wire.marked(pa.RecordBatch.from_pydict({"name": ["a", None]}), "logs")
GOOD = wire.encode([ONE, OTHER, NAMED])


def test_batches_come_out_as_they_went_in() -> None:
    got = wire.decode(GOOD, 1 << 20)
    assert [batch.to_pydict() for batch in got] == [batch.to_pydict() for batch in (ONE, OTHER, NAMED)]
    streams = wire.by_stream(got)
    assert {name: sum(batch.num_rows for batch in batches) for name, batches in streams.items()} == {"0": 6, "logs": 2}
    assert wire.decode(wire.encode([]), 100) == []


def test_parts_have_a_limit_of_bytes() -> None:
    with pytest.raises(QueryLimit) as beyond:
        wire.decode(GOOD, len(GOOD) - 1)
    assert (beyond.value.limit, beyond.value.reached) == ("shipped bytes", len(GOOD))
    many = wire.encode(
        [wire.marked(pa.RecordBatch.from_pydict({"x": pa.array(["a" * 1000] * 50).dictionary_encode()}).slice(0, 50), "0")] * 3
    )
    assert wire.decode(many, 1 << 20)


def test_unmarked_batches_and_unequal_ones_are_refused() -> None:
    with pytest.raises(QueryError, match="belongs to nothing"):
        wire.by_stream([pa.RecordBatch.from_pydict({"x": [1]})])
    with pytest.raises(QueryError, match="different columns"):
        wire.by_stream([ONE, wire.marked(pa.RecordBatch.from_pydict({"x": [1]}), "0")])


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), min_size=1, max_size=6), st.integers(0, len(GOOD)))
def test_damaged_parts_are_errors_of_queries(changes: list[tuple[int, int]], length: int) -> None:
    damaged = bytearray(GOOD)
    for at, value in changes:
        damaged[at] = value
    for data in (bytes(damaged), bytes(damaged[:length]), bytes(damaged) + b"x"):
        try:
            wire.by_stream(wire.decode(data, 1 << 20))
        except QueryError:
            continue


def test_coverage_is_in_the_metadata_of_the_table() -> None:
    coverage = Coverage(
        3, 2, (Missing("h2", "no answer"),), 100, False, 12.5, (Stage("hosts", 1, 2, 10, 3.0), Stage("entry", 0, 1, 4, 2.0))
    )
    table = coverage.on(pa.table({"x": [1]}))
    assert Coverage.of(table) == coverage
    assert Coverage.of(pa.table({"x": [1]})) is None
    assert b'"missing": [{"host": "h2", "reason": "no answer"}]' in table.schema.metadata[b"coverage"]
    assert coverage.stages_table().to_pylist()[0] == {"name": "entry", "level": 0, "hosts": 1, "rows": 4, "ms": 2.0}


def test_memory_limit_is_read_from_engine_errors() -> None:
    limit = memory_limit("Resources exhausted: Failed to allocate additional 2.0 KB for Sort", 1000)
    assert limit is not None
    assert (limit.limit, limit.value, limit.reached) == ("memory bytes", 1000, 3048)
    assert memory_limit("Divide by zero", 1000) is None


def test_texts_that_rows_share_count_for_each() -> None:
    # A view: the length of its text, its first bytes, the number of a buffer, and the position in it.
    view = struct.pack("<i4sii", 10_000, b"xxxx", 0, 0)
    texts = pa.Array.from_buffers(pa.string_view(), 1_000, [None, pa.py_buffer(view * 1_000), pa.py_buffer(b"x" * 10_000)])
    shared = wire.encode([wire.marked(pa.RecordBatch.from_arrays([texts], ["x"]), "0")])
    assert wire.decode(shared, 1 << 24)[0].num_rows == 1_000
    with pytest.raises(wire.Malformed, match="more than a host may send"):
        wire.decode(shared, 1 << 20)


def test_batches_without_rows_are_bounded() -> None:
    nothing = wire.marked(pa.RecordBatch.from_pydict({"x": pa.array([], pa.int64())}), "0")
    with pytest.raises(wire.Malformed, match="65537 batches, more than a host may send"):
        wire.decode(wire.encode([nothing] * 65_600), 1 << 26)


def test_rows_without_columns_are_bounded() -> None:
    nothing = pa.RecordBatch.from_struct_array(pa.StructArray.from_buffers(pa.struct([]), 1 << 40, [None]))
    with pytest.raises(wire.Malformed, match="more than a host may send"):
        wire.decode(wire.encode([wire.marked(nothing, "0")]), 1 << 20)
