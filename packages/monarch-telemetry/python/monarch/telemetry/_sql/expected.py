"""The columns that the answers of hosts must have: Arrow that is valid may be another table, and then ends the statement that scans it.

A plan has the columns of each of its cuts as a text in which the library itself writes them. The text is made at the entry node, once a
plan. The columns of a batch are written by the library too, and compared. Tables that are shipped have the columns of the catalog.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from monarch.telemetry._sql import functions
from monarch.telemetry._sql.context import Session, nullable
from monarch.telemetry._sql.cuts import Cut, Path
from monarch.telemetry._sql.wire import Malformed, by_stream

_SCHEMA = ", schema="
_MOST_SCHEMAS = 256


def columns_of(session: Session, sql: str, cuts: Sequence[Cut]) -> tuple[str, ...]:
    """The columns of the cuts of a statement; an empty text for a node that the library does not write in one line."""
    nodes = _nodes(session, sql)
    return tuple(nodes.get(cut.run, "") for cut in cuts)


def check(plan: Any, batches: Sequence[Any]) -> None:
    """`Malformed` for an answer of a host whose streams are none of the plan, or have other columns."""
    for stream, mine in by_stream(batches).items():
        schema = mine[0].schema
        fragment = next((one for one in plan.fragments if one.table == stream), None)
        if plan.way == "ship" and fragment is not None:
            known = plan.schemas[functions.key(functions.parsed(stream)[0]) if functions.is_call(stream) else stream]
            fits = [(field.name, field.type) for field in schema] == [(name, known.field(name).type) for name in fragment.columns]
        else:
            place = int(stream) if plan.way in {"states", "rows"} and stream.isdecimal() and len(stream) < 6 else -1
            fits = 0 <= place < len(plan.columns) and _written(nullable(schema)) == plan.columns[place]
        if not fits:
            raise Malformed(f"an answer has other columns than the statement: {', '.join(map(str, schema))[:200]}")


@lru_cache(_MOST_SCHEMAS)
def _written(schema: Any) -> str:
    """These columns as the library writes them; empty for columns that it does not take."""
    try:
        return _nodes(Session({"answer": (schema, ())}, show_columns=True), "SELECT * FROM answer")[()]
    except Exception:
        return ""


def _nodes(session: Session, sql: str) -> Mapping[Path, str]:
    """The columns of the nodes of the physical plan of a statement, by the way to them."""
    kinds = session.frame(f"EXPLAIN {sql}").to_pydict()
    lines = kinds["plan"][kinds["plan_type"].index("physical_plan")].splitlines()
    found: dict[Path, str] = {}
    # The path to the last node of each depth.
    ways: list[Path] = []
    children: list[int] = []
    for line in lines:
        depth = (len(line) - len(line.lstrip())) // 2
        _, known, columns = line.rpartition(_SCHEMA)
        if not known or depth > len(ways):
            # The text of a node has several lines.
            return {}
        del ways[depth:], children[depth + 1 :]
        if depth == len(children):
            children.append(0)
        way = (*ways[-1], children[depth]) if ways else ()
        children[depth] += 1
        ways.append(way)
        found[way] = columns.replace(";N", "")
    return found
