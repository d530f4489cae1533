"""What datafusion reports of a statement, made the errors of telemetry: with line and column, and the nearest name."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from monarch.telemetry._sql.limits import Limits, memory_limit
from monarch.telemetry.errors import QueryError

_TABLE = re.compile(r"table '(?:datafusion\.public\.)?([^']*)' not found")
_COLUMN = re.compile(r"No field named (?:\"?\w+\"?\.)*\"?([^\s\".,]+)\"?[.\s]")
_AT = re.compile(r" at Line: (\d+), Column: (\d+)")
_PREFIX = re.compile(r"^(?:DataFusion error: |Error during planning: |Schema error: |SQL error: |This feature is not implemented: )+")
_PARSER = re.compile(r'^(?:ParserError|TokenizerError)\("(.*)"\)$', re.DOTALL)
_LONGEST = 2000
_FEW = 12


def query_error(error: BaseException, sql: str, schemas: Mapping[str, Any], limits: Limits) -> QueryError:
    """The error to raise for one of the library."""
    text = str(error)
    limit = memory_limit(text, limits.memory)
    if limit is not None:
        return limit
    hint = None
    place = _AT.search(text)
    said = _PREFIX.sub("", text)
    inner = _PARSER.match(said)
    said = _AT.sub("", inner[1] if inner else said)
    if table := _TABLE.search(text):
        # The name with its folder or schema is what the statement has.
        said, hint = f"there is no table {table[1]!r}", _nearest(table[1], schemas, "tables")
        name = table[1]
    elif column := _COLUMN.search(text):
        names = {field for schema in schemas.values() for field in schema.names}
        said, hint = f"there is no column {column[1]!r}", _nearest(column[1], _valid(text) or names, "columns")
        name = column[1]
    else:
        name = ""
    where = f"line {place[1]}, column {place[2]}: " if place else _found(name, sql)
    if len(said) > _LONGEST:
        said = said[:_LONGEST] + "…"
    return QueryError(f"{where}{said}", hint=hint)


def unknown_table(error: BaseException) -> str | None:
    """The table that is not there, if that is what the library reports."""
    found = _TABLE.search(str(error))
    return found[1] if found else None


def _valid(text: str) -> list[str]:
    found = re.search(r"Valid fields are (.*)\.", text, re.DOTALL)
    return [part.strip().rpartition(".")[2].strip('"') for part in found[1].split(",")] if found else []


def _nearest(name: str, known: Iterable[str], kind: str) -> str:
    names = sorted(set(known))
    near = difflib.get_close_matches(name, names, 1, 0.5)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"{kind} are {', '.join(names[:_FEW])}{', …' if len(names) > _FEW else ''}" if names else f"there are no {kind}"


def _found(name: str, sql: str) -> str:
    """Where the only mention of a name stands: the library reports it for errors of the grammar only."""
    places = [match.start() for match in re.finditer(rf"(?<!\w){re.escape(name)}(?!\w)", sql, re.IGNORECASE)] if name else []
    if len(places) != 1:
        return ""
    before = sql[: places[0]]
    return f"line {before.count(chr(10)) + 1}, column {len(before) - (before.rfind(chr(10)) + 1) + 1}: "
