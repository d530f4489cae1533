"""The real engine over stand-in hosts that join, are stopped, killed and lost between questions.

Each answer is that of one session over the rows of the hosts that have answered, and the coverage names all others.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.stand_in_hosts import ANSWER_TIMEOUT, StandIn, made
from test_telemetry_plan import HOST, SCHEMAS, equal, rows_of, statements, union

from monarch.telemetry import PartialAnswer, QueryError, QueryTimeout
from monarch.telemetry._arrow import pa
from monarch.telemetry._sql import plan as planning
from monarch.telemetry._sql import wire

CHANGES = ("stop", "continue", "kill", "lose")
# A host joins with its rows; a host, by its place, changes; a statement is asked.
STEP = st.one_of(
    HOST.map(lambda rows: ("join", rows)),
    st.tuples(st.sampled_from(CHANGES), st.integers(0, 7)),
    statements().map(lambda stated: ("ask", stated)),
)


def _column(kind: Any, value: Any = None) -> Callable[[Any], bytes]:
    """The batch with a column of this type in the place of the first one."""

    def made(batch: Any) -> bytes:
        column = pa.array([value] * batch.num_rows, kind)
        return _encoded(pa.RecordBatch.from_arrays([column, *batch.columns[1:]], names=batch.schema.names), batch)

    return made


def _encoded(found: Any, of: Any) -> bytes:
    return wire.encode([wire.marked(found, (of.schema.metadata or {})[wire.STREAM].decode())])


def _empty_rows(batch: Any) -> Any:
    nothing = pa.StructArray.from_buffers(pa.struct([]), 1 << 40, [None])
    return pa.RecordBatch.from_struct_array(nothing)


def _packed(batch: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(batch)
    stream = sink.getvalue().to_pybytes()
    return b"MTP1" + (1).to_bytes(4, "little") + len(stream).to_bytes(8, "little") + stream


def _nested(depth: int) -> Any:
    kind: Any = pa.int64()
    for _ in range(depth):
        kind = pa.list_(kind)
    return kind


# Answers in Arrow, made from the first batch of a correct one.
FOREIGN: dict[str, Callable[[Any], bytes]] = {
    "another type": _column(pa.float32(), 1.0),
    "text": _column(pa.large_string(), "1"),
    "no type": _column(pa.null()),
    "a dictionary": _column(pa.dictionary(pa.int32(), pa.string()), "x" * 10_000),
    "views": _column(pa.binary_view(), b"x" * 10_000),
    "nested": _column(_nested(40)),
    "other names": lambda batch: _encoded(batch.rename_columns([f"{name}2" for name in batch.schema.names]), batch),
    "a column more": lambda batch: _encoded(batch.append_column("more", batch.column(0)), batch),
    "no columns": lambda batch: _encoded(_empty_rows(batch), batch),
    "compressed": _packed,
    "another stream": lambda batch: wire.encode([wire.marked(batch, "9" * 5_000)]),
    "two schemas": lambda batch: wire.encode([batch, batch.select(range(batch.num_columns - 1)), batch]),
}


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
def test_answers_match_the_hosts_they_include(
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


def test_replaced_collector_is_asked_again_and_stated(patch: pytest.MonkeyPatch) -> None:
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
    # A member of a group, or a separate host.
    hosts[1].says = says
    answer = engine.ask("select count(*) n from t", timeout=ANSWER_TIMEOUT)
    (missing,) = answer.coverage.missing
    assert missing.host == "host1" and ("malformed" in missing.reason or "not Arrow" in missing.reason)
    assert (answer.coverage.hosts_answered, answer.table.to_pylist()) == (4, [{"n": 0}])
    with pytest.raises(PartialAnswer, match="host1: "):
        engine.ask("select count(*) n from t", timeout=ANSWER_TIMEOUT, require_all=True)


def test_answer_of_malformed_parts_alone_is_an_error(patch: pytest.MonkeyPatch) -> None:
    engine = made(patch, SCHEMAS, 16)
    host = StandIn("host", SCHEMAS, {})
    engine.hosts.append(host)
    host.says = (b"x" * 100, 5)
    with pytest.raises(QueryError, match="^host: a part of an answer is not Arrow"):
        engine.ask("select count(*) n from t", timeout=ANSWER_TIMEOUT)


@pytest.mark.parametrize("group", [2, 16])
@pytest.mark.parametrize("sql", ["select count(*) n from t", "select x, g from t limit 9", "select a.x from t a join t b on a.g = b.g"])
@pytest.mark.parametrize("foreign", FOREIGN)
def test_host_with_foreign_arrow_costs_only_itself(patch: pytest.MonkeyPatch, group: int, sql: str, foreign: str) -> None:
    engine = made(patch, SCHEMAS, group)
    row = pa.RecordBatch.from_pylist([{"g": "a", "x": 1}], schema=SCHEMAS["t"])
    hosts = [StandIn(f"host{n}", SCHEMAS, {"t": [row]}) for n in range(4)]
    engine.hosts.extend(hosts)
    whole = engine.ask(sql, timeout=ANSWER_TIMEOUT)
    plan = planning.make(sql, SCHEMAS)
    hosts[1].says = (FOREIGN[foreign](*planning.part(plan, {"t": (SCHEMAS["t"], [row])})[:1]), 5)
    answer = engine.ask(sql, timeout=ANSWER_TIMEOUT)
    assert [one.host for one in answer.coverage.missing] == ["host1"] and answer.coverage.hosts_answered == 3
    hosts.pop(1)
    del engine.hosts[1]
    assert answer.table.num_rows <= whole.table.num_rows and answer.table.equals(engine.ask(sql, timeout=ANSWER_TIMEOUT).table)


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


@pytest.mark.parametrize("data", [b"x" * 100, wire.encode([wire.marked(pa.RecordBatch.from_pydict({"n": ["many"]}), "0")])])
def test_leader_of_bytes_without_meaning_costs_only_itself(patch: pytest.MonkeyPatch, data: bytes) -> None:
    engine = made(patch, SCHEMAS, 2)
    row = pa.RecordBatch.from_pylist([{"x": 1}], schema=SCHEMAS["t"])
    hosts = [StandIn(f"host{n}", SCHEMAS, {"t": [row]}) for n in range(6)]
    engine.hosts.extend(hosts)
    hosts[2].says_of_group = (data, 0, [])
    hosts[4].says_of_group, hosts[5].says = (data, 0, []), "nothing"
    answer = engine.ask("select count(*) n from t", timeout=ANSWER_TIMEOUT)
    missing = [one.host for one in answer.coverage.missing]
    assert (answer.coverage.hosts_answered, missing, answer.table.to_pylist()) == (3, ["host2", "host4", "host5"], [{"n": 3}])


@pytest.mark.parametrize("group", [2, 16])
def test_silent_host_is_skipped_until_it_answers(patch: pytest.MonkeyPatch, group: int) -> None:
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
    # A collector that ends in the meantime is started again.
    hosts[2].is_stopped = True
    assert list(reasons()) == ["host2"]
    hosts[2].kill()
    assert reasons() == {}
