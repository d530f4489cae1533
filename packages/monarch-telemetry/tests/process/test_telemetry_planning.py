"""No statement is planned in the process that serves, and one whose plan is far larger than its text ends, or is refused."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Generator
from typing import Any

import pyarrow as pa
import pytest
import telemetry_program
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_telemetry_heavy_queries import ended, workers

from monarch.telemetry import QueryError, QueryLimit, QueryTimeout
from monarch.telemetry._engine.running_queries import RunningQueries
from monarch.telemetry._sql import context, planner
from monarch.telemetry._sql import worker as working
from monarch.telemetry._sql.context import LONGEST_SQL
from monarch.telemetry._sql.limits import DEFAULT
from monarch.telemetry._sql.worker import WORKERS

SCHEMAS = {
    "logs": pa.schema([("seq", pa.int64()), ("host", pa.string()), ("line", pa.string())]),
    "t": pa.schema([("x", pa.int64()), ("g", pa.string())]),
}
ROWS = {
    "logs": (SCHEMAS["logs"], [pa.RecordBatch.from_pydict({"seq": [1, 2], "host": ["a", "b"], "line": ["x", "y"]}, schema=SCHEMAS["logs"])])
}
_BODY = "SELECT CASE WHEN x > 1 THEN x ELSE x + 1 END AS x FROM "
# Some hundred bytes with a planning time of minutes: one that the first gate does not detect, and one of names.
NESTED = f"SELECT count(*) FROM {f'({_BODY}' * 12}(SELECT seq AS x FROM logs){')' * 12} WHERE x > 5"
NAMED = (
    "WITH a0 AS (SELECT seq AS x FROM logs)"
    + "".join(f", a{n} AS ({_BODY}a{n - 1})" for n in range(1, 12))
    + " SELECT count(*) FROM a11 WHERE x > 5"
)


@pytest.fixture(autouse=True)
def nothing_is_planned_here() -> Generator[None]:
    def library() -> Any:
        raise AssertionError("the process that serves plans a statement itself")

    WORKERS.close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(context, "_library", library)
        # The time of a statement is then for its plan, and not for the start of a process.
        planner.make("SELECT 1", SCHEMAS, deadline=time.monotonic() + 600.0)
        yield
    WORKERS.close()
    assert workers() == []


def answered(sql: str, seconds: float, clock: Any = time.monotonic) -> Any:
    """The answer over rows that this process has."""
    deadline = clock() + seconds
    plan = planner.make(sql, SCHEMAS, deadline=deadline, clock=clock)
    own = {name: ROWS[name] for name in plan.reads if name in ROWS}
    table, *_ = planner.finish(plan, [], own, deadline=deadline, clock=clock)
    return table.to_pylist()


@pytest.mark.parametrize(
    ("sql", "stage"), [(NESTED, "plan"), (NAMED, "plan"), (f"EXPLAIN {NESTED}", "execution"), (f"EXPLAIN ANALYZE {NAMED}", "plan")]
)
def test_planning_ends_at_the_limit_of_time(sql: str, stage: str) -> None:
    assert answered("SELECT count(*) AS n FROM logs", 60.0) == [{"n": 2}]
    (worker,) = workers()
    pidfd = os.pidfd_open(worker)
    try:
        with pytest.raises(QueryTimeout, match="the time of the query is over") as caught:
            answered(sql, 0.5)
        assert caught.value.stage == stage and workers() == [] and ended(pidfd)
    finally:
        os.close(pidfd)
    assert answered("SELECT count(*) AS n FROM logs", 60.0) == [{"n": 2}]


def test_planning_ends_at_the_limit_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    # Any process uses more.
    monkeypatch.setattr(working, "most_planning", lambda: 1 << 20)
    with pytest.raises(QueryLimit, match="memory bytes to plan it") as caught:
        answered(NAMED, 60.0)
    assert caught.value.reached > caught.value.value == 1 << 20
    assert workers() == []


def test_cancelled_planning_ends_at_once() -> None:
    queries = RunningQueries(lambda: 1)
    query = queries.begin(NESTED)
    errors: list[BaseException] = []

    def ask() -> None:
        try:
            planner.make(NESTED, SCHEMAS, deadline=time.monotonic() + 600.0, limits=DEFAULT._replace(seconds=600.0), clock=query.clock)
        except QueryTimeout as error:
            errors.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    while not WORKERS._busy:  # polls: the thread starts
        pass
    assert queries.cancel(query.number)
    thread.join()
    assert len(errors) == 1 and workers() == []
    with pytest.raises(QueryError, match="was cancelled"):
        query.answer()


def test_recursion_without_an_end_ends_at_the_limit() -> None:
    endless = "WITH RECURSIVE x AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM x) SELECT count(*) FROM x"
    with pytest.raises((QueryTimeout, QueryLimit)):
        answered(endless, 0.5)
    assert workers() == []


# ---- made-up statements

_TABLES = st.sampled_from(["logs", "t"])
_TERM = st.sampled_from(["seq", "x", "host", "line", "g", "1", "'a'", "NULL", "now()", "*", "count(*)", "(SELECT 1)"])


def _nested(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        inner.map("CASE WHEN {0} > 1 THEN {0} ELSE {0} + 1 END".format),
        inner.map("{0} || {0}".format),
        inner.map("abs({0}) + sum({0}) OVER (ORDER BY {0})".format),
        inner.map("replace({0}, 'a', {0})".format),
        st.tuples(inner, inner).map(lambda two: f"({two[0]} = {two[1]} OR {two[0]} IN ({two[1]}, 1, 2))"),
        inner.map(lambda one: f"EXISTS (SELECT {one} FROM logs)"),
    )


_EXPRESSION = st.recursive(_TERM, _nested, max_leaves=6)
_SOURCE = st.one_of(
    _TABLES,
    st.tuples(_TABLES, st.integers(1, 30)).map(lambda of: " NATURAL JOIN ".join([of[0]] * of[1])),
    st.tuples(_EXPRESSION, st.integers(1, 14)).map(lambda of: f"(SELECT {of[0]} AS x FROM " * of[1] + "logs" + ")" * of[1]),
)
_TAIL = st.one_of(
    st.just(""),
    st.integers(1, 40).map(lambda n: " GROUP BY CUBE(" + ", ".join(f"seq + {k}" for k in range(n)) + ")"),
    st.tuples(_EXPRESSION, st.integers(1, 200)).map(lambda of: " WHERE " + " AND ".join([f"{of[0]} <> {k}" for k in range(of[1])])),
    st.integers(1, 300).map(lambda n: " UNION SELECT 1" * n),
)
_SELECT = st.tuples(_EXPRESSION, _SOURCE, _TAIL).map(lambda of: f"SELECT {of[0]} FROM {of[1]}{of[2]}")
_BODIES = st.sampled_from(
    [
        "SELECT * FROM {0} UNION ALL SELECT * FROM {0}",
        "SELECT l.x FROM {0} l JOIN {0} r ON l.x = r.x",
        _BODY + "{0}",
        "SELECT x + x AS x FROM {0}",
        "SELECT count(*) AS x FROM {0} GROUP BY CUBE(x, x + 1, x + 2)",
    ]
)


def _chain(of: tuple[str, int, str]) -> str:
    body, depth, end = of
    each = "".join(f", a{n} AS ({body.format(f'a{n - 1}')})" for n in range(1, depth))
    return f"WITH a0 AS (SELECT seq AS x FROM logs){each} SELECT {end} FROM a{depth - 1}"


STATEMENTS = st.one_of(
    _SELECT,
    st.tuples(_BODIES, st.integers(1, 150), _EXPRESSION).map(_chain),
    st.text(alphabet="()[]{}'\"$-/*\\,;a1 \n", max_size=2000).map("SELECT ".__add__),
    st.sampled_from("([{'\"$-").flatmap(lambda sign: st.integers(1, LONGEST_SQL).map(lambda n: "SELECT " + sign * n)),
).map(lambda sql: sql.encode()[:LONGEST_SQL].decode(errors="ignore"))


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(sql=STATEMENTS)
def test_every_statement_is_answered_ended_or_refused(sql: str) -> None:
    # Also after a statement that has ended its process.
    assert answered("SELECT 1 AS n", 600.0) == [{"n": 1}]
    try:
        assert isinstance(answered(sql, 0.3), list)
    except QueryError:
        return


# ---- a job

PROGRAM = """
import os, sys, threading
from monarch import telemetry
from monarch.actor import this_host
from monarch.telemetry import QueryError, QueryTimeout

running = telemetry.start()
print("=", running.engine.query("SELECT count(*) AS n FROM hosts").to_pylist())
try:
    running.engine.query(NAMED, timeout=0.5)
except QueryTimeout as error:
    print("=", error.stage)
found = []
def ask():
    try:
        running.engine.query(NAMED, timeout=600)
    except QueryError as error:
        found.append(str(error))
thread = threading.Thread(target=ask)
thread.start()
while not (queries := running.asking.running.list()):  # polls: the thread begins
    continue
print("=", running.asking.running.cancel(queries[0].number))
thread.join()
print("=", found == [f"query {queries[0].number} was cancelled"], running.asking.running.cancel(queries[0].number))
print("=", running.engine.query("SELECT count(*) AS n FROM information_schema.tables WHERE table_name = 'logs'").to_pylist())
# The process that serves has not even loaded what plans.
print("=", "datafusion" in sys.modules)
running.stop().get()
"""


def test_script_of_a_job_plans_nothing() -> None:
    assert telemetry_program.shown(f"NAMED = {NAMED!r}{PROGRAM}") == ["[{'n': 1}]", "plan", "True", "True False", "[{'n': 1}]", "False"]


LAST = """
import atexit, os, sys
import pyarrow as pa
from monarch.telemetry._sql import planner

schemas = {"t": pa.schema([("n", pa.int64())])}

def ask():
    plan = planner.make("SELECT 1 AS n", schemas, deadline=float("inf"))
    print("=", planner.finish(plan, [], deadline=float("inf"))[0].to_pylist())

# Registered first, so called after the workers have been ended.
atexit.register(ask)
ask()
sys.exit()
"""


def test_functions_of_atexit_have_answers() -> None:
    assert telemetry_program.shown(LAST) == ["[{'n': 1}]", "[{'n': 1}]"]
