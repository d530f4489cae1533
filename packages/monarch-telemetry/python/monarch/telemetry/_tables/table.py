"""What a table is: its columns with kinds and meanings, an example, how long its rows are kept, and its Arrow schema.

Arrow is imported when a schema is asked for: the catalog is read where no query runs.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Literal, NamedTuple

Kind = Literal["text", "u64", "i64", "i32", "f64", "bool"]
# The limit of a table. history: time and bytes. entities: all live ones, and the last 10,000 ended ones. on demand: a number of captures.
# live: no rows are kept, a query computes them.
Retention = Literal["history", "entities", "on demand", "live"]


class Column(NamedTuple):
    """A column; the meaning has the unit."""

    name: str
    kind: Kind
    meaning: str
    nullable: bool = False
    # Whether it is the name or the number of the host of a row, and of every row that a collector has: it has no rows of other hosts.
    of_host: Literal["name", "number"] | None = None

    @property
    def type(self) -> str:
        """The kind as it is shown: with a `?` where a row may have no value."""
        return f"{self.kind}?" if self.nullable else self.kind


def time(name: str, meaning: str, *, nullable: bool = False) -> Column:
    """A column of times, in microseconds since the epoch."""
    return Column(name, "i64", f"{meaning}, in microseconds since the epoch", nullable)


class Table(NamedTuple):
    """A table, or a table function where `function` is set: a statement calls it, with the name of a mesh or with nothing."""

    name: str
    columns: tuple[Column, ...]
    # One sentence, without its full stop.
    meaning: str
    # A valid statement.
    example: str
    retention: Retention
    function: bool = False

    @property
    def source(self) -> str:
        """What stands behind FROM."""
        return f"{self.name}()" if self.function else self.name

    def schema(self) -> Any:
        """The `pyarrow.Schema`, always the same object; the metadata of a field has the meaning of the column."""
        return _schema(self)

    def empty(self) -> Any:
        """A `pyarrow.RecordBatch` without rows."""
        from monarch.telemetry._arrow import pa

        return pa.RecordBatch.from_pylist([], schema=self.schema())


@cache
def _schema(table: Table) -> Any:
    from monarch.telemetry._arrow import pa

    types: dict[Kind, Any] = {
        "text": pa.string(),
        "u64": pa.uint64(),
        "i64": pa.int64(),
        "i32": pa.int32(),
        "f64": pa.float64(),
        "bool": pa.bool_(),
    }

    def metadata(one: Column) -> dict[str, str]:
        return {"meaning": one.meaning} if one.of_host is None else {"meaning": one.meaning, "of_host": one.of_host}

    return pa.schema([pa.field(one.name, types[one.kind], one.nullable, metadata(one)) for one in table.columns])
