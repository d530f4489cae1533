"""Queries in progress: their numbers, and what a cancel ends."""

from __future__ import annotations

import math
import threading

import pytest

from monarch.extension import promise
from monarch.telemetry._engine import running_queries
from monarch.telemetry._engine.running_queries import RunningQueries
from monarch.telemetry.errors import QueryError


def running() -> RunningQueries:
    return RunningQueries(lambda: 77)


def test_queries_are_listed_until_they_end() -> None:
    queries = running()
    first, second = queries.begin("SELECT 1"), queries.begin("SELECT 2")
    assert [(row.number, row.sql) for row in queries.list()] == [(1, "SELECT 1"), (2, "SELECT 2")]
    assert (first.token, second.number) == (77, 2)
    queries.end(first)
    queries.end(first)
    assert [row.number for row in queries.list()] == [2]
    assert not queries.cancel(1) and queries.cancel(2)
    # A cancelled query is in progress until its thread has ended.
    assert [row.number for row in queries.list()] == [2]


def test_cancellation_ends_a_wait_and_is_forwarded_once() -> None:
    query = running().begin("SELECT 1")
    waiting = promise("the part of a host")
    told: list[str] = []
    query.on_cancel(lambda: told.append("host"))
    errors: list[str] = []

    def wait() -> None:
        try:
            query.wait(waiting.future, 60.0)
        except QueryError as error:
            errors.append(str(error))

    thread = threading.Thread(target=wait)
    thread.start()
    query.cancel()
    query.cancel()
    thread.join()
    assert errors == ["query 1 was cancelled"] and told == ["host"]
    query.on_cancel(lambda: told.append("late"))
    assert told == ["host", "late"] and query.clock() == math.inf
    with pytest.raises(QueryError):
        query.check()
    waiting.set_result(None)


def test_wait_returns_available_results_after_the_deadline() -> None:
    query = running().begin("SELECT 1")
    answer = promise("an answer")
    answer.set_result(5)
    assert query.wait(answer.future, 0.0) == 5
    failing = promise("a failure")
    failing.set_exception(LookupError("no"))
    with pytest.raises(LookupError):
        query.wait(failing.future, 10.0)
    late = promise("a late answer")
    with pytest.raises(TimeoutError):
        query.wait(late.future, 0.0)
    late.set_result(None)


def test_arrived_answer_needs_no_other_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(running_queries, "when_done")
    query, answer = running().begin("SELECT 1"), promise("an answer")
    answer.set_result(5)
    assert query.wait(answer.future, 10.0) == 5
    query.cancel()
    with pytest.raises(QueryError):
        query.wait(answer.future, 10.0)


def test_cancel_is_true_or_the_answer_goes_out() -> None:
    queries = running()
    answered, cancelled = queries.begin("SELECT 1"), queries.begin("SELECT 2")
    answered.answer()
    assert not queries.cancel(1)
    answered.check()
    assert queries.cancel(2) and queries.cancel(2)
    with pytest.raises(QueryError, match="query 2 was cancelled"):
        cancelled.answer()
    assert queries.cancel(2)
