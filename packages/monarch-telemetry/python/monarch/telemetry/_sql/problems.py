"""What datafusion reports of a statement, made the errors of telemetry: with line and column, and the nearest name.

The errors of datafusion in Python have one type, `Exception`: their text alone has the reason, for this module and for `gate`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from monarch.telemetry._sql.limits import Limits, memory_limit
from monarch.telemetry.errors import QueryError

_TABLE = re.compile(r"table '(?:datafusion\.public\.)?([^']*)' not found")
_COLUMN = re.compile(r"No field named (?:\"?\w+\"?\.)*\"?([^\s\".,]+)\"?[.\s]")
_SHOW = re.compile(r"SHOW (?:TABLES|COLUMNS) is not supported unless information_schema")
_AT = re.compile(r" at Line: (\d+), Column: (\d+)")
# The passes of the planner through which an error was propagated.
_PASSES = re.compile(r"^(?:[^\n]*\ncaused by\n)+")
_KINDS = "DataFusion|Schema|SQL|Arrow|Cast|Parser|Execution|Internal|Compute|Invalid argument"
_PREFIX = re.compile(rf"^(?:(?:{_KINDS}) error: |Error during planning: |This feature is not implemented: )+")
_BUG = re.compile(r"\.?\s*This issue was likely caused by a bug in DataFusion's code\.[^\n]*?/issues\.?")
_NO_FUNCTION = re.compile(
    r"^(.*?)\.? No function matches the given name and argument types '(.*?)'\..*?Candidate functions:(.*)$", re.DOTALL
)
_COERCION = re.compile(r"^Function '\w+' user-defined coercion failed with: ")
_SPANS = re.compile(r"\s\w+ \{ .*span: Span\(.*$", re.DOTALL)
_TIME = r"\b(?:Timestamp|Interval|Duration|Date32)\b"
_MIXED_TIMES = re.compile(rf"\bInt64\b.*{_TIME}|{_TIME}.*\bInt64\b")
# In the unit of these columns.
_NOW_US = "CAST(to_unixtime(now()) AS BIGINT) * 1000000"
_PARSER = re.compile(r'^(?:ParserError|TokenizerError)\("(.*)"\)$', re.DOTALL)
_LONGEST = 2000
_FEW = 12


class PlanMismatch(QueryError):
    """A host plans the statement in another form: the question is asked again with `make(..., cut=False)`."""


def query_error(error: BaseException, sql: str, schemas: Mapping[str, Any], limits: Limits) -> QueryError:
    """The error to raise for one of the library."""
    text = str(error)
    limit = memory_limit(text, limits.memory)
    if limit is not None:
        return limit
    hint = None
    place = _AT.search(text)
    message = _PREFIX.sub("", _PASSES.sub("", text))
    inner = _PARSER.match(message)
    message = _AT.sub("", inner[1] if inner else message)
    if table := _TABLE.search(text):
        # The name with its folder or schema is the one in the statement.
        message, hint = f"there is no table {table[1]!r}", _nearest(table[1], schemas, "tables")
        name = table[1]
    elif column := _COLUMN.search(text):
        names = {field for schema in schemas.values() for field in schema.names}
        message, hint = f"there is no column {column[1]!r}", _nearest(column[1], _valid(text) or names, "columns")
        name = column[1]
    else:
        message, hint, name = _explained(message)
    where = f"line {place[1]}, column {place[2]}: " if place else _found(name, sql)
    if len(message) > _LONGEST:
        message = message[:_LONGEST] + "…"
    return QueryError(f"{where}{message}", hint=hint)


def _explained(message: str) -> tuple[str, str | None, str]:
    """What the library reports without its own parts, with a hint, and the name of the function that it is about."""
    message = _SPANS.sub("", _BUG.sub("", message)).strip()
    if wrong := _NO_FUNCTION.search(message):
        why, call, candidates = wrong[1], wrong[2], [one.strip() for one in wrong[3].split("\n")]
        takes = sorted({one for one in candidates if one and "UserDefined" not in one})
        hint = f"there is {', '.join(takes[:_FEW])}; CAST(x AS type) has another type" if takes else None
        why = "" if "failed to match any signature" in why else _PREFIX.sub("", _COERCION.sub("", why)).rstrip(".")
        return f"no function takes these arguments: {call}{f' ({why})' if why else ''}", hint, call.partition("(")[0]
    if _MIXED_TIMES.search(message):
        return message, f"columns that end in _us are microseconds since the epoch, and now is {_NOW_US}", ""
    return message, None, ""


def needs_catalog(error: BaseException) -> bool:
    """Whether the statement is a SHOW, which the library executes with `information_schema` only."""
    return _SHOW.search(str(error)) is not None


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
