"""A part that a host knows from an earlier question gives what it gives without that, whatever has come to the tables."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pyarrow as pa
import pytest

from monarch.telemetry import QueryLimit, QueryTimeout
from monarch.telemetry._sql import functions
from monarch.telemetry._sql.known_parts import KnownParts
from monarch.telemetry._sql.limits import DEFAULT, Limits
from monarch.telemetry._sql.plan import Plan, make, part

SCHEMAS = {"t": pa.schema([("g", pa.string()), ("x", pa.int64())]), "s": pa.schema([("g", pa.string()), ("y", pa.int64())])}
POINT = "SELECT g FROM t WHERE x = 7 LIMIT 1"
STATEMENTS = [
    POINT,
    "SELECT g, count(*) FROM t GROUP BY g",
    "SELECT g, min(x), max(x) FROM t GROUP BY g ORDER BY g",
    "SELECT count(*) FROM t",
    "SELECT min(x), max(x) FROM t WHERE x > 3",
    "SELECT x FROM t ORDER BY x DESC LIMIT 3",
    "SELECT g FROM t UNION ALL SELECT g FROM s",
    "SELECT DISTINCT g FROM t",
    "SELECT sum(x) FROM (SELECT x FROM t ORDER BY x LIMIT 5)",
    "SELECT g, x FROM t WHERE random() < 2 AND x > 1 LIMIT 20",
    "SELECT t.x, s.y FROM t JOIN s ON t.g = s.g",
]


def batch(name: str, *rows: tuple[str, int]) -> Any:
    return pa.RecordBatch.from_pylist([dict(zip(SCHEMAS[name].names, row, strict=True)) for row in rows], schema=SCHEMAS[name])


def tables(*batches: Any, others: Any = ()) -> dict[str, tuple[Any, list[Any]]]:
    return {"t": (SCHEMAS["t"], list(batches)), "s": (SCHEMAS["s"], list(others))}


def rows(batches: list[Any]) -> list[tuple[Any, ...]]:
    found = [(batch.schema.metadata[b"stream"], *row.values()) for batch in batches for row in batch.to_pylist()]
    return sorted(found, key=repr)


ONE, TWO = batch("t", *(("a" if n % 2 else "b", n) for n in range(9))), batch("t", ("c", 7), ("a", 40))
OTHER = batch("s", ("a", 1), ("d", 2))


@pytest.mark.parametrize("sql", STATEMENTS)
def test_known_part_gives_what_a_fresh_one_gives(sql: str) -> None:
    plan, known = make(sql, SCHEMAS), KnownParts()
    states = [[ONE], [ONE], [ONE], [ONE, TWO], [ONE, TWO], [TWO], [], [ONE]]
    for number, batches in enumerate(states):
        given = tables(*batches, others=[OTHER] if number > 4 else ())
        assert rows(part(plan, given, known=known)) == rows(part(plan, given)), sql


def test_statement_over_the_same_rows_is_planned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from monarch.telemetry._sql import plan as planning

    plan, known, planned = make(POINT, SCHEMAS), KnownParts(), list[str]()
    real = planning.gate.in_session

    def counted(sql: str, *given: Any) -> Any:
        planned.append(sql)
        return real(sql, *given)

    monkeypatch.setattr(planning.gate, "in_session", counted)
    for _ in range(3):
        part(plan, tables(ONE), known=known)
    assert planned == [POINT]
    part(plan, tables(ONE, TWO), known=known)
    assert planned == [POINT] * 2


def test_new_statement_has_the_table_already() -> None:
    known, given = KnownParts(), tables(ONE)
    part(make(POINT, SCHEMAS), given, known=known)
    table = known.table("t", [ONE])
    part(make("SELECT count(*) FROM t", SCHEMAS), given, known=known)
    assert table is not None and known.table("t", [ONE]) is table
    assert known.table("t", [ONE, TWO]) is None and known.table("t", [batch("t", ("c", 1))]) is None


def test_part_with_the_current_time_is_planned_again() -> None:
    plan, known = make("SELECT x FROM t WHERE x < CAST(now() AS BIGINT)", SCHEMAS), KnownParts()
    part(plan, tables(ONE), known=known)
    assert not known._parts


def test_rows_that_were_replaced_are_released() -> None:
    known, old = KnownParts(), batch("t", ("a", 1))
    plans = [make(sql, SCHEMAS) for sql in STATEMENTS[:4]]
    for plan in plans:
        part(plan, tables(old), known=known)
    part(plans[0], tables(ONE), known=known)
    assert len(known._parts) == 1
    gone = weakref.ref(old)
    del old
    gc.collect()
    assert gone() is None


def test_parts_are_forgotten_after_two_looks() -> None:
    known, plan = KnownParts(), make(POINT, SCHEMAS)
    part(plan, tables(ONE), known=known)
    known.forget()
    assert known._parts and known._tables
    part(plan, tables(ONE), known=known)
    known.forget()
    assert known._parts and known._tables
    known.forget()
    assert not known._parts and not known._tables


def test_oldest_part_is_forgotten_first() -> None:
    known, given = KnownParts(most=2), tables(ONE)
    plans = [make(f"SELECT g FROM t WHERE x = {n}", SCHEMAS) for n in range(3)]
    for plan in plans:
        part(plan, given, known=known)
    assert [asked[0] for asked in known._parts if isinstance(asked, tuple)] == [plan.sql for plan in plans[1:]]


def test_two_threads_never_have_the_same_part() -> None:
    known, plan = KnownParts(), make(POINT, SCHEMAS)
    part(plan, tables(ONE), known=known)
    (asked,) = known._parts
    first = known.take(asked, {"t": [ONE]})
    assert first is not None and known.take(asked, {"t": [ONE]}) is None
    known.keep("t", [TWO], known.table("t", [ONE]))
    known.give(asked, {"t": [ONE]}, first)
    assert not known._parts


def test_limits_hold_for_known_parts() -> None:
    plan, known = make("SELECT g, x FROM t", SCHEMAS), KnownParts()
    part(plan, tables(ONE), known=known)
    with pytest.raises(QueryTimeout):
        part(plan, tables(ONE), known=known, deadline=0.0)
    with pytest.raises(QueryLimit):
        part(plan, tables(ONE), known=known, limits=Limits(memory=8))
    assert rows(part(plan, tables(ONE), known=known)) == rows(part(plan, tables(ONE)))


def test_rows_of_table_functions_are_not_known() -> None:
    schemas = {**SCHEMAS, functions.key("live"): SCHEMAS["t"]}
    plan, known = make("SELECT g FROM live() WHERE x > 1", schemas), KnownParts()
    assert isinstance(plan, Plan) and plan.reads == ("live()",)
    for batches in ([ONE], [ONE, TWO], []):
        given = {"live()": (SCHEMAS["t"], batches)}
        assert rows(part(plan, given, known=known, limits=DEFAULT)) == rows(part(plan, given))
    assert not known._parts
