"""The real engine over stand-in hosts that join, are stopped, killed and lost between questions.

Each answer is that of one session over the rows of the hosts that have answered, and the coverage names all others.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.stand_in_hosts import ANSWER_TIMEOUT, StandIn, made
from test_telemetry_plan import HOST, SCHEMAS, equal, rows_of, statements, union

from monarch.telemetry import PartialAnswer, QueryTimeout
from monarch.telemetry._sql import plan as planning

CHANGES = ("stop", "continue", "kill", "lose")
# A host joins with its rows; a host, by its place, changes; a statement is asked.
STEP = st.one_of(
    HOST.map(lambda rows: ("join", rows)),
    st.tuples(st.sampled_from(CHANGES), st.integers(0, 7)),
    statements().map(lambda stated: ("ask", stated)),
)


@pytest.fixture(scope="module")
def patch() -> Generator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


def changed(host: StandIn, change: str) -> None:
    if host.is_lost:
        return
    if change in ("stop", "continue"):
        host.is_stopped = change == "stop"
    else:
        (host.kill if change == "kill" else host.lose)()


def check(engine: Any, hosts: list[StandIn], sql: str, ordered: bool) -> None:
    missing = sorted(host.name for host in hosts if not host.answers)
    is_local = planning.make(sql, SCHEMAS).way == "local"
    if len(missing) == len(hosts) and hosts and not is_local:
        with pytest.raises(QueryTimeout) as caught:
            engine.ask(sql, timeout=ANSWER_TIMEOUT)
        assert sorted(caught.value.missing) == missing
        return
    answer = engine.ask(sql, timeout=ANSWER_TIMEOUT)
    wanted = union(sql, [dict(host.rows) for host in hosts if host.answers])
    assert equal(rows_of(answer.table), wanted, ordered=ordered), sql
    if is_local:
        return
    cover = answer.coverage
    assert sorted(one.host for one in cover.missing) == missing, sql
    assert (cover.hosts_asked, cover.hosts_answered) == (len(hosts), len(hosts) - len(missing)), sql
    if missing:
        with pytest.raises(PartialAnswer) as partial:
            engine.ask(sql, timeout=ANSWER_TIMEOUT, require_all=True)
        assert sorted(partial.value.missing) == missing
        assert equal(rows_of(partial.value.table), wanted, ordered=ordered), sql


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(
    first=st.lists(HOST, min_size=1, max_size=4), steps=st.lists(STEP, min_size=1, max_size=10), last=statements(), group=st.integers(1, 5)
)
def test_answers_are_right_about_the_hosts_that_they_have(
    patch: pytest.MonkeyPatch, first: list[Any], steps: list[tuple[str, Any]], last: tuple[str, bool], group: int
) -> None:
    hosts: list[StandIn] = []
    engine = made(patch, SCHEMAS, group)

    def join(rows: Any) -> None:
        hosts.append(StandIn(f"host{len(hosts)}", SCHEMAS, rows))
        engine.hosts.append(hosts[-1])

    for rows in first:
        join(rows)
    for kind, what in (*steps, ("ask", last)):
        if kind == "join":
            join(what)
        elif kind == "ask":
            check(engine, hosts, *what)
        elif hosts:
            changed(hosts[what % len(hosts)], kind)


def test_a_collector_that_ended_is_asked_again_and_stated(patch: pytest.MonkeyPatch) -> None:
    engine = made(patch, SCHEMAS, 16)
    host = StandIn("host0", SCHEMAS, {})
    host.lost = engine._lost
    engine.hosts.append(host)
    host.kill()
    answer = engine.ask("select count(*) n from t", timeout=ANSWER_TIMEOUT)
    assert answer.table.to_pylist() == [{"n": 0}] and answer.coverage.missing == ()
    events = engine.own.tables(["events"])["events"][1]
    assert [row["name"] for batch in events for row in batch.to_pylist()] == ["telemetry.collector_ended"]


@pytest.mark.parametrize("group", [1, 2, 3, 16])
@pytest.mark.parametrize("says", [(b"x" * 100, 5), (b"", 0), b"", (b"",), ("text", 1)])
def test_host_with_a_malformed_answer_costs_only_itself(patch: pytest.MonkeyPatch, group: int, says: object) -> None:
    engine = made(patch, SCHEMAS, group)
    hosts = [StandIn(f"host{n}", SCHEMAS, {}) for n in range(5)]
    engine.hosts.extend(hosts)
    # A member of a group, or a host of its own.
    hosts[1].says = says
    answer = engine.ask("select count(*) n from t", timeout=ANSWER_TIMEOUT)
    (missing,) = answer.coverage.missing
    assert missing.host == "host1" and ("malformed" in missing.reason or "not Arrow" in missing.reason)
    assert (answer.coverage.hosts_answered, answer.table.to_pylist()) == (4, [{"n": 0}])
    with pytest.raises(PartialAnswer, match="host1: "):
        engine.ask("select count(*) n from t", timeout=ANSWER_TIMEOUT, require_all=True)


@pytest.mark.parametrize(
    "says", [b"", (b"", 0), (b"", 0, None), ("text", 0, []), (b"", "many", []), (b"", 0, ["one"]), (b"", 0, [9]), (b"", 0, [-1])]
)
def test_group_of_a_malformed_leader_is_asked(patch: pytest.MonkeyPatch, says: object) -> None:
    engine = made(patch, SCHEMAS, 2)
    hosts = [StandIn(f"host{n}", SCHEMAS, {}) for n in range(4)]
    engine.hosts.extend(hosts)
    hosts[2].says_of_group = says
    coverage = engine.ask("select count(*) n from t", timeout=ANSWER_TIMEOUT).coverage
    assert (coverage.hosts_answered, coverage.missing) == (4, ())


def test_group_of_bytes_without_meaning_is_missing(patch: pytest.MonkeyPatch) -> None:
    engine = made(patch, SCHEMAS, 2)
    hosts = [StandIn(f"host{n}", SCHEMAS, {}) for n in range(4)]
    engine.hosts.extend(hosts)
    hosts[2].says_of_group = (b"x" * 100, 0, [])
    coverage = engine.ask("select count(*) n from t", timeout=ANSWER_TIMEOUT).coverage
    assert (coverage.hosts_answered, [one.host for one in coverage.missing]) == (2, ["host2", "host3"])


@pytest.mark.parametrize("group", [2, 16])
def test_a_host_that_was_silent_is_not_asked_before_it_gives_word(patch: pytest.MonkeyPatch, group: int) -> None:
    engine = made(patch, SCHEMAS, group)
    hosts = [StandIn(f"host{n}", SCHEMAS, {}) for n in range(4)]
    engine.hosts.extend(hosts)

    def reasons() -> dict[str, str]:
        return {one.host: one.reason for one in engine.ask("select count(*) n from t", timeout=ANSWER_TIMEOUT).coverage.missing}

    hosts[1].is_stopped = True
    assert reasons() == {"host1": "no answer in time"}
    asked = hosts[1].asked
    for _ in range(3):
        assert reasons() == {"host1": "no answer in time to an earlier question, and none since"}
    assert hosts[1].asked == asked
    hosts[1].is_stopped = False
    assert reasons() == {} and hosts[1].asked == asked + 1
    # One that ends meanwhile is started again.
    hosts[2].is_stopped = True
    assert list(reasons()) == ["host2"]
    hosts[2].kill()
    assert reasons() == {}
