"""Statements whose values grow are planned and run in a process of their own, within the limits of the query."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from monarch.telemetry import QueryError, QueryLimit, QueryRejected
from monarch.telemetry._sql import plan as planning
from monarch.telemetry._sql import planner, wire
from monarch.telemetry._sql.growth import may_grow
from monarch.telemetry._sql.limits import DEFAULT, Limits
from monarch.telemetry._sql.worker import WORKERS

SCHEMAS = {"t": pa.schema([("x", pa.int64()), ("g", pa.string())])}
LETTER = "'a'"
FEW = DEFAULT._replace(memory=16 << 20, seconds=60.0)


def nested(depth: int, inner: str) -> str:
    """`inner` with each `a` replaced by ten, so many times."""
    for _ in range(depth):
        inner = f"replace({inner}, 'a', 'aaaaaaaaaa')"
    return inner


def asked(sql: str, limits: Limits = FEW) -> list[dict[str, Any]]:
    rows = pa.RecordBatch.from_pydict({"x": [1, 2], "g": ["a", "b"]}, schema=SCHEMAS["t"])
    deadline = planning.time.monotonic() + limits.seconds
    plan = planner.make(sql, SCHEMAS, limits=limits, deadline=deadline)
    part = planning.part(plan, {"t": (SCHEMAS["t"], [rows])}, limits=limits)
    table, *_ = planner.finish(plan, [wire.encode(part)], limits=limits, deadline=deadline)
    return table.to_pylist()


@pytest.mark.parametrize(
    "sql",
    [
        f"SELECT length({nested(9, LETTER)}) AS n",
        f"EXPLAIN SELECT length({nested(9, LETTER)}) AS n",
        f"SELECT x FROM t WHERE g = {nested(9, LETTER)}",
        'SELECT length("replace"/**/' + nested(9, "g").removeprefix("replace") + ") AS n FROM t",
    ],
)
def test_growing_values_end_at_the_limit_of_memory(sql: str) -> None:
    assert may_grow(sql)
    with pytest.raises(QueryLimit, match="memory"):
        asked(sql)
    WORKERS.close()


def test_small_values_are_answered() -> None:
    assert asked(f"SELECT length({nested(3, LETTER)}) AS n") == [{"n": 1000}]
    assert asked(f"SELECT x, length({nested(2, 'g')}) AS n FROM t WHERE x < 2 ORDER BY x") == [{"x": 1, "n": 100}]
    assert asked(f"SELECT count(*) AS n FROM t GROUP BY {nested(2, 'g')}") == [{"n": 1}, {"n": 1}]
    with pytest.raises(QueryRejected, match="INSERT"):
        asked(f"INSERT INTO t SELECT 1, {nested(2, LETTER)}")
    with pytest.raises(QueryError, match="there is no column 'y'"):
        asked(f"SELECT y, {nested(2, 'g')} FROM t")
    WORKERS.close()


def test_no_host_runs_what_grows() -> None:
    plan = planning.make(f"SELECT {nested(2, 'g')} AS n FROM t WHERE {nested(2, 'g')} <> 'a' ", SCHEMAS)
    assert (plan.way, [one.sql for one in plan.fragments]) == ("ship", ['SELECT "g" FROM "t"'])
    WORKERS.close()


@pytest.mark.parametrize(
    ("sql", "grows"),
    [
        ("SELECT replace(line, 'a', 'b') FROM logs", False),
        ("SELECT line || ' ' || host FROM logs WHERE lower(line) ~ '[a-z]+ [0-9]{3}$'", False),
        ("SELECT count(*) FROM logs", False),
        ("SELECT [[a, a], a] FROM t", True),
        ("SELECT 1 /* ' */, [[1], [2]] --'", True),
        ("SELECT " + "||".join(["a"] * 16), True),
        ("SELECT concat(" + ",".join(["a"] * 2000) + ")", True),
    ],
)
def test_statements_that_may_grow(sql: str, grows: bool) -> None:
    assert may_grow(sql) is grows
