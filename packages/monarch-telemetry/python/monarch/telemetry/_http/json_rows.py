"""Rows of Arrow as JSON: numbers stay exact, what JSON has no form for is text, and what is no number is null."""

from __future__ import annotations

import base64
import datetime
import decimal
import json
import math
from collections.abc import Callable, Sequence
from typing import Any, cast

from monarch.telemetry._arrow import pa


def rows(table: Any, *, ids_as_text: bool = False) -> list[dict[str, Any]]:
    """The rows of a table or batch, each a dictionary. With `ids_as_text` numbers of columns named `id` or `*_id` are texts.

    A name that several columns have gets a number from the second one on.
    """
    names: list[str] = []
    for name in table.schema.names:
        again = 2
        unique = name
        while unique in names:
            unique, again = f"{name}_{again}", again + 1
        names.append(unique)
    columns = [_values(table.column(index), field.type, ids_as_text and _is_id(field.name)) for index, field in enumerate(table.schema)]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)] if columns else [{} for _ in range(table.num_rows)]


def _is_id(name: str) -> bool:
    return name == "id" or name.endswith("_id")


def _values(column: Any, kind: Any, as_text: bool) -> list[Any]:
    values = cast("list[Any]", column.to_pylist())
    types = pa.types
    convert: Callable[[Any], Any] | None = plain
    if types.is_integer(kind):
        convert = str if as_text else None
    elif (
        types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind) or types.is_boolean(kind) or types.is_null(kind)
    ):
        convert = None
    elif types.is_floating(kind):
        convert = _number
    return values if convert is None else [None if value is None else convert(value) for value in values]


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def plain(value: Any) -> Any:
    """A value of Python as one of JSON."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, list | tuple):
        return [plain(one) for one in cast("Sequence[Any]", value)]
    if isinstance(value, dict):
        return {str(name): plain(one) for name, one in cast("dict[Any, Any]", value).items()}
    return str(value)


def encode(value: Any) -> bytes:
    """JSON as bytes; a lone surrogate is escaped."""
    return json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode()


def text(value: str) -> str:
    """A text of SQL."""
    return "'" + value.replace("'", "''") + "'"


def like(value: str) -> str:
    """A pattern of LIKE that matches texts with this part."""
    escaped = value.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return text(f"%{escaped}%")


def coverage(found: Any) -> dict[str, Any]:
    """`Coverage` as JSON."""
    fields: dict[str, Any] = found._asdict()
    fields["missing"] = [one._asdict() for one in found.missing]
    fields["stages"] = [one._asdict() for one in found.stages]
    return fields
