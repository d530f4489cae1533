"""Writes docs/sql.md from the tables of monarch-telemetry: each with its sentence, columns and an example."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

INTRODUCTION = """\
# Tables

monarch-telemetry records a job in tables, which you query by SQL ([telemetry.md](telemetry.md)). Every host keeps its own rows, and a
statement runs on all hosts. This page lists all tables, each with an example.

Types are `text`, `bool`, integers without a sign (`u64`) and with a sign (`i64`, `i32`), and floating point numbers (`f64`). A `?` marks
a column that may be NULL. Times are microseconds since the epoch; `to_timestamp_micros(timestamp_us)` converts a time to a timestamp. An
identifier is the same number in all tables.

Every table is bounded:

| kept | rows |
|---|---|
| history | rows in the order of their arrival, until they are too old or the table needs their space |
| entities | a row for each running entity, and for the last 10,000 that have ended |
| on demand | the last captures |
| live | none: a statement makes the rows when it runs |

Names with `()` are table functions. The argument is the name of a mesh; without an argument, the function reads the whole job. Tables
that name another wheel exist only if the job uses that wheel.

`information_schema.tables` and `information_schema.columns` have this catalog as rows, with the schema `public`.

"""


def text() -> str:
    """The page, without the note on its source."""
    return "".join((INTRODUCTION, *_lines())).rstrip("\n") + "\n"


def _lines() -> Iterator[str]:
    sections: dict[str, tuple[Any, ...]] = importlib.import_module("monarch.telemetry._tables.catalog").SECTIONS
    for title, tables in sections.items():
        yield f"## {title}\n\n"
        for table in tables:
            yield f"### `{table.source}`\n\n{table.meaning}. *Kept: {table.retention}.*\n\n"
            yield "| Column | Type | Meaning |\n|---|---|---|\n"
            for column in table.columns:
                yield f"| `{column.name}` | {column.type} | {column.meaning} |\n"
            yield f"\n```sql\n{table.example}\n```\n\n"
