"""A statement that is asked again is not planned again, unless its plan has something of the time in it."""

from __future__ import annotations

from typing import Any

import pytest

from monarch.telemetry._collector.keeping import schemas
from monarch.telemetry._sql.known_plans import KnownPlans
from monarch.telemetry._sql.limits import DEFAULT, Limits
from monarch.telemetry._sql.plan import Plan, make
from monarch.telemetry.errors import QueryRejected

KEPT = schemas()
GROUPED = "SELECT endpoint, count(*) FROM messages GROUP BY endpoint"


def planned(known: KnownPlans, sql: str, *, schemas: Any = None, limits: Limits = DEFAULT, cut: bool = True) -> Plan:
    schemas = KEPT if schemas is None else schemas
    return known.plan(sql, schemas, limits, cut, lambda: make(sql, schemas, limits=limits, cut=cut))


def test_same_statement_has_the_same_plan() -> None:
    known = KnownPlans()
    first = planned(known, GROUPED)
    assert planned(known, GROUPED) is first
    assert planned(known, GROUPED, cut=False).way == "ship"
    assert planned(known, GROUPED, limits=DEFAULT._replace(rows=7)) is not first


def test_plan_of_changed_tables_is_made_anew() -> None:
    known = KnownPlans()
    before, others = planned(known, GROUPED), {**KEPT}
    assert planned(known, GROUPED, schemas=others).schemas is others
    assert planned(known, GROUPED) == before


def test_plan_with_the_current_time_is_not_reused() -> None:
    sql, known = "SELECT median(timestamp_us) FROM messages WHERE timestamp_us > CAST(now() AS BIGINT)", KnownPlans()
    first, second = planned(known, sql), planned(known, sql)
    assert (first.way, second.way) == ("ship", "ship") and first is not second


def test_refused_statement_is_refused_again() -> None:
    known = KnownPlans()
    for _ in range(2):
        with pytest.raises(QueryRejected, match="read-only"):
            planned(known, "DROP TABLE messages")


def test_oldest_plans_are_forgotten() -> None:
    known, made = KnownPlans(most=2), list[str]()

    def asked(sql: str) -> None:
        def make() -> Plan:
            made.append(sql)
            return Plan(sql, "select", "rows", KEPT)

        known.plan(sql, schemas(), DEFAULT, True, make)

    for sql in ("a", "b", "a", "c", "a", "b"):
        asked(sql)
    assert made == ["a", "b", "c", "b"]
