"""Rows that a program sends: of tables of snapshots, as an Arrow stream that nothing is believed of."""

from __future__ import annotations

from typing import Any

from monarch.telemetry._arrow import pa
from monarch.telemetry._http.calls import Call
from monarch.telemetry._http.parts import need
from monarch.telemetry._http.problems import Problem
from monarch.telemetry._tables.snapshots import TABLES

_TABLES = {table.name: table for table in TABLES}
MOST_ROWS = 1_000_000
# The most bytes of the rows after decompression.
MOST_BYTES = 256 << 20


def ingest(call: Call) -> dict[str, Any]:
    """`POST /api/ingest_snapshot/<table>`."""
    sink = need(call.parts.ingest, "to store snapshots")
    name = call.path["table"]
    table = _TABLES.get(name)
    if table is None:
        raise Problem.not_found(f"there is no table of snapshots {name!r}; they are {', '.join(_TABLES)}")
    batches = decoded(call.body, table.schema())
    sink(name, batches)
    return {"rows": sum(batch.num_rows for batch in batches)}


def decoded(data: bytes, schema: Any) -> list[Any]:
    """The batches of a stream that has the columns of a table. `Problem` 400 for anything else."""
    batches: list[Any] = []
    rows = size = 0
    try:
        with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
            if not _same(reader.schema, schema):
                expected = ", ".join(f"{field.name} {field.type}" for field in schema)
                raise Problem.bad_request(f"the columns are {expected}")
            for batch in reader:
                # All buffers are validated here: offsets are used without a check afterwards.
                batch.validate(full=True)
                rows, size = rows + batch.num_rows, size + batch.nbytes
                if rows > MOST_ROWS or size > MOST_BYTES:
                    raise Problem.bad_request(f"a snapshot has at most {MOST_ROWS:,} rows and {MOST_BYTES:,} bytes", status=413)
                for field, column in zip(schema, batch.columns, strict=True):
                    if not field.nullable and column.null_count:
                        raise Problem.bad_request(f"the column {field.name} has no value in {column.null_count} rows")
                batches.append(pa.RecordBatch.from_arrays(batch.columns, schema=schema))
    except (pa.ArrowException, ValueError, OSError, MemoryError, OverflowError) as error:
        raise Problem.bad_request(f"the body is no Arrow stream: {str(error)[:300]}") from None
    return batches


def _same(given: Any, schema: Any) -> bool:
    return given.names == schema.names and all(mine.type.equals(field.type) for mine, field in zip(given, schema, strict=True))


HANDLERS = {"api_ingest_snapshot": ingest}
