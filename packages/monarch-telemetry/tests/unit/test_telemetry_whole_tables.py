"""Whole tables in pieces: what limits cut apart is put together, and what cannot be is stated."""

from __future__ import annotations

from typing import Any

import pytest
from support import made_up_job as job
from support.engine import Engine

from monarch.telemetry._asking import NO_SERVER, Answer
from monarch.telemetry._engine.one_host import OneHost
from monarch.telemetry._export.whole_tables import LARGE, Tables, now_us, stored
from monarch.telemetry._sql.coverage import Missing
from monarch.telemetry._sql.limits import DEFAULT, Limits
from monarch.telemetry._tables.catalog import TABLES
from monarch.telemetry.errors import QueryError, QueryTimeout, TelemetryError

STORED = [name for name, table in TABLES.items() if not table.function]


class Passing:
    """Passes statements on; `fail` raises for some of them."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.limits: list[Limits] = []
        self.asked: list[str] = []

    def fail(self, sql: str, limits: Limits) -> None: ...

    def ask(self, sql: str, *, timeout: float | None = None, require_all: bool = False, limits: Limits = DEFAULT) -> Answer:
        self.asked.append(sql)
        self.limits.append(limits)
        self.fail(sql, limits)
        found: Answer = self.engine.ask(sql, timeout=timeout, require_all=require_all, limits=limits)
        return found


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=repr)


@pytest.mark.parametrize("name", ["logs", "messages", "actor_nodes"])
def test_table_beyond_a_limit_is_whole(name: str) -> None:
    rows = job.rows()
    engine = Passing(OneHost(rows))
    wanted = [row for batch in rows[name] for row in batch.to_pylist()]
    answer = Tables(engine, large=LARGE._replace(rows=7)).ask(name)
    assert in_order(answer.table.to_pylist()) == in_order(wanted) and len(wanted) > 7
    assert not answer.coverage.truncated and len(engine.asked) > 3
    within = Tables(engine, large=LARGE._replace(rows=7)).ask(name, "1 = 0")
    assert within.table.num_rows == 0 and within.table.schema.names == answer.table.schema.names


@pytest.mark.parametrize("answers_later", [True, False])
def test_unresponsive_server_is_probed_before_more_tables(answers_later: bool) -> None:
    class Stopped(Passing):
        def fail(self, sql: str, limits: Limits) -> None:
            if "FROM logs" in sql or ("now()" in sql and not answers_later):
                raise QueryTimeout("http://127.0.0.1:9 did not answer within 30 s", stage=NO_SERVER)

    engine, notes = Stopped(OneHost(job.rows())), list[str]()
    if answers_later:
        found = dict(stored(engine, since_us=None, note=notes.append))
        assert {*STORED} - {*found} == {"logs"} and notes == ["table logs is left out: http://127.0.0.1:9 did not answer within 30 s"]
        return
    with pytest.raises(QueryTimeout, match="did not answer"):
        list(stored(engine, since_us=None, note=notes.append))
    assert "now()" in engine.asked[-1] and "FROM logs" in engine.asked[-2]


def test_rows_without_a_time_are_cut_and_stated() -> None:
    answer = Tables(OneHost(job.rows()), large=LARGE._replace(rows=3)).ask("procs")
    assert answer.table.num_rows == 3 and answer.coverage.truncated
    whole = Tables(OneHost(job.rows()), large=LARGE._replace(rows=4)).ask("procs")
    assert whole.table.num_rows == 4 and not whole.coverage.truncated


def test_rows_of_one_time_are_cut_and_stated() -> None:
    answer = Tables(OneHost(job.rows()), large=LARGE._replace(rows=3)).ask("actor_nodes", "snapshot_id = 1")
    assert answer.table.num_rows == 3 and answer.coverage.truncated


def test_host_missing_in_a_part_is_missing() -> None:
    engine = Engine(job.rows(), missing=(Missing("host9", "no answer"),))
    answer = Tables(engine, large=LARGE._replace(rows=7)).ask("logs")
    assert answer.coverage.missing == (Missing("host9", "no answer"),)
    assert (answer.coverage.hosts_asked, answer.coverage.hosts_answered) == (2, 1)


def test_refused_limits_become_the_usual_ones_once() -> None:
    class Refusing(Passing):
        def fail(self, sql: str, limits: Limits) -> None:
            if limits != DEFAULT:
                raise TelemetryError("answers 403")

    engine = Refusing(OneHost(job.rows()))
    tables = Tables(engine)
    assert tables.ask("procs").table.num_rows == 4 and tables.ask("hosts").table.num_rows == 2
    assert engine.limits == [LARGE, DEFAULT, DEFAULT]


def test_engine_that_is_gone_is_an_error() -> None:
    class Gone(Passing):
        def fail(self, sql: str, limits: Limits) -> None:
            raise TelemetryError("cannot be reached")

    with pytest.raises(TelemetryError, match="cannot be reached"):
        list(stored(Gone(OneHost({})), since_us=None, note=lambda text: None))


def test_all_stored_tables_are_taken() -> None:
    found = dict(stored(OneHost(job.rows()), since_us=None, note=lambda text: None))
    assert list(found) == STORED
    assert all(in_order(found[name].table.to_pylist()) == in_order(job.rows()[name][0].to_pylist()) for name in STORED)


def test_history_is_taken_from_a_time_on() -> None:
    since = job.START + 25 * job.SECOND
    found = {name: answer.table for name, answer in stored(OneHost(job.rows()), since_us=since, note=lambda text: None)}
    times = found["logs"].column("timestamp_us").to_pylist()
    assert len(times) == 15 and min(times) == since
    assert set(found["snapshots"].column("snapshot_id").to_pylist()) == {2} == set(found["actor_nodes"].column("snapshot_id").to_pylist())
    assert found["actors"].num_rows == len(job.ACTORS) and found["pyspy_frames"].num_rows == 2
    late = {name: answer.table for name, answer in stored(OneHost(job.rows()), since_us=job.END, note=lambda text: None)}
    assert late["actor_nodes"].num_rows == late["snapshots"].num_rows == 0 and late["procs"].num_rows == 4


def test_table_that_cannot_be_had_is_left_out() -> None:
    class Failing(Passing):
        bad = ("FROM logs", "FROM links")

        def fail(self, sql: str, limits: Limits) -> None:
            if sql.endswith(self.bad):
                raise QueryTimeout("the time of the query is over\nhint: ask for less")

    notes: list[str] = []
    found = dict(stored(Failing(OneHost(job.rows())), since_us=None, note=notes.append))
    assert list(found) == [name for name in STORED if name not in ("logs", "links")]
    assert sorted(notes) == [f"table {name} is left out: the time of the query is over" for name in ("links", "logs")]
    Failing.bad = tuple(STORED)
    with pytest.raises(QueryError, match="time of the query"):
        list(stored(Failing(OneHost({})), since_us=None, note=notes.append))


def test_clock_is_that_of_the_engine() -> None:
    first = now_us(OneHost({}))
    assert 1_700_000_000_000_000 < first <= now_us(OneHost({}))
