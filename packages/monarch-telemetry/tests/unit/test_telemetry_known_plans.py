"""A statement that is asked again is not planned again, unless its plan has something of the time in it."""

from __future__ import annotations

import pytest

from monarch.telemetry._collector.keeping import schemas
from monarch.telemetry._sql import plan
from monarch.telemetry._sql.known_plans import KnownPlans
from monarch.telemetry._sql.limits import DEFAULT
from monarch.telemetry.errors import QueryRejected

GROUPED = "SELECT endpoint, count(*) FROM messages GROUP BY endpoint"


def test_the_same_statement_has_the_same_plan() -> None:
    assert plan.make(GROUPED, schemas()) is plan.make(GROUPED, schemas())
    assert plan.make(GROUPED, schemas(), cut=False).way == "ship"
    assert plan.make(GROUPED, schemas(), limits=DEFAULT._replace(rows=7)) is not plan.make(GROUPED, schemas())


def test_a_plan_of_other_tables_is_made_anew() -> None:
    before = plan.make(GROUPED, schemas())
    others = {**schemas()}
    assert plan.make(GROUPED, others).schemas is others
    assert plan.make(GROUPED, schemas()) == before


def test_shipped_rows_are_planned_anew_as_their_fragments_have_the_time() -> None:
    sql = "SELECT median(timestamp_us) FROM messages WHERE timestamp_us > CAST(now() AS BIGINT)"
    first, second = plan.make(sql, schemas()), plan.make(sql, schemas())
    assert (first.way, second.way) == ("ship", "ship") and first is not second


def test_what_is_refused_is_refused_again() -> None:
    for _ in range(2):
        with pytest.raises(QueryRejected, match="read-only"):
            plan.make("DROP TABLE messages", schemas())


def test_the_plans_that_were_asked_longest_ago_are_forgotten() -> None:
    known, made = KnownPlans(most=2), list[str]()

    def asked(sql: str) -> None:
        def make() -> plan.Plan:
            made.append(sql)
            return plan.Plan(sql, "select", "rows", schemas())

        known.plan(sql, schemas(), DEFAULT, True, make)

    for sql in ("a", "b", "a", "c", "a", "b"):
        asked(sql)
    assert made == ["a", "b", "c", "b"]
