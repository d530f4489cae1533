"""A host is not asked where no row of it can matter: the answer is the same as with all hosts."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.stand_in_hosts import ANSWER_TIMEOUT, StandIn, made
from test_telemetry_plan import equal, rows_of

from monarch.telemetry._collector.keeping import schemas
from monarch.telemetry._sql import gate, wire
from monarch.telemetry._sql.known_plans import KnownPlans
from monarch.telemetry._sql.limits import DEFAULT
from monarch.telemetry._sql.plan import Plan, finish, make, part
from monarch.telemetry._tables.catalog import TABLES

NAME, NUMBER = {"of_host": "name"}, {"of_host": "number"}
SCHEMAS = {
    "l": pa.schema([pa.field("host", pa.string(), False, NAME), ("x", pa.int64()), ("g", pa.string())]),
    "p": pa.schema([pa.field("id", pa.uint64(), False, NUMBER), pa.field("name", pa.string(), False, NAME), ("x", pa.int64())]),
    # Its rows may be about any host.
    "o": pa.schema([("host", pa.string()), ("x", pa.int64())]),
}
# Two hosts have one name, names differ by case, and the last host is not known to the entry node.
HOSTS = {1: "a", 2: "b", 3: "B", 4: "a", 5: "c", 6: "b"}
KNOWN = {number: name for number, name in HOSTS.items() if number != 6}
X = st.one_of(st.none(), st.integers(0, 3))
ROWS = st.fixed_dictionaries(
    {
        "l": st.lists(st.tuples(X, st.sampled_from([None, "a", "b"])), max_size=3),
        "p": st.lists(X, max_size=2),
        "o": st.lists(st.tuples(st.sampled_from([None, "a", "b", "c"]), X), max_size=2),
    }
)
NAMES = st.sampled_from(["'a'", "'b'", "'B'", "'c'", "'z'", "null"])


def tables(number: int, rows: Any) -> dict[str, Any]:
    host = HOSTS[number]
    found = {
        "l": [{"host": host, "x": x, "g": g} for x, g in rows["l"]],
        "p": [{"id": number, "name": host, "x": x} for x in rows["p"]],
        "o": [{"host": other, "x": x} for other, x in rows["o"]],
    }
    return {name: [pa.RecordBatch.from_pylist(each, schema=SCHEMAS[name])] for name, each in found.items()}


@st.composite
def conditions(draw: st.DrawFn, alias: str, subqueries: bool, depth: int = 2) -> str:
    """A condition on the rows of `l`, under an alias."""
    kind = (
        draw(st.sampled_from(["name", "name", "other", "and", "or", "not", "case"])) if depth else draw(st.sampled_from(["name", "other"]))
    )
    host, x = f"{alias}.host", f"{alias}.x"
    if kind in ("and", "or"):
        return f"({draw(conditions(alias, subqueries, depth - 1))} {kind} {draw(conditions(alias, subqueries, depth - 1))})"
    if kind == "not":
        return f"not ({draw(conditions(alias, subqueries, depth - 1))})"
    if kind == "case":
        one, two = draw(conditions(alias, subqueries, depth - 1)), draw(conditions(alias, subqueries, depth - 1))
        return f"case when {one} then {two} else {draw(st.sampled_from(['true', 'false', 'null', x + ' = 1']))} end"
    if kind == "other":
        of_tables = [f"{host} in (select host from o)", f"{host} = (select max(name) from p where name < 'b')"] if subqueries else []
        return draw(st.sampled_from([f"{x} = 1", f"{x} is null", f"{x} < 2", f"{alias}.g = {host}", "true", *of_tables]))
    several = ", ".join(draw(st.lists(NAMES, min_size=1, max_size=5)))
    of_one = draw(st.sampled_from(["=", "<>", ">=", "is distinct from", "is not distinct from", "like", "ilike"]))
    return draw(
        st.sampled_from(
            [
                *(f"({host} {of_one} {draw(NAMES)})",) * 3,
                *(f"{host} in ({several})", f"{host} not in ({several})", f"{host} between 'a' and {draw(NAMES)}"),
                *(
                    f"upper({host}) = 'B'",
                    f"concat({host}, '') = {draw(NAMES)}",
                    f"{host} is null",
                    f"{host} is not null",
                    f"coalesce({host}, {alias}.g) = 'a'",
                ),
                *(f"nullif({host}, 'a') is null", f"({host} = 'a') is not true"),
            ]
        )
    )


FORMS = [
    "select * from l where {l}",
    "select count(*), sum(x), min(host) from l where {l}",
    "select g, count(*) from l where {l} group by g",
    "select host, count(*) from l group by host having host = 'a' or host = 'c'",
    "with v as (select host, x, g from l) select r.x, r.host from v r where {r}",
    "select r.host, r.x from (select * from l where x > 0) r where {r}",
    "select * from (select host, x, g, count(*) over () n from l) r where {r}",
    "select * from (select host, x, g, count(*) over (partition by host) n from l) r where {r}",
    "select * from (select host, x, g from l order by x, host, g limit 2) r where {r}",
    "select l.x, r.x from l join l r on l.host = r.host where {l}",
    "select l.x, r.x from l join l r on l.host <> r.host where {l}",
    "select l.x, p.id from l left join p on l.host = p.name and {l}",
    "select l.x, p.id from l left join p on l.host = p.name where {l}",
    "select l.x, p.id from l right join p on l.host = p.name where {l}",
    "select l.x, r.host from l full join l r on l.x = r.x and {r} where {l}",
    "select l.x, r.x from l left join l r on l.x = r.x where {l} and r.host is null",
    "select l.x from l, o where l.x = o.x and {l}",
    "select host from l where {l} union all select name from p where name = 'b' and id in (2, 3)",
    "select host from l where {l} union select host from o",
    "select host from l except select r.host from l r where {r}",
    "select x from l where x not in (select r.x from l r where {r} and r.x is not null)",
    "select x from l where exists (select 1 from l r where r.host = l.host and {r})",
    "select (select count(*) from l r where {r}) n, x from l where {l}",
    "select count(*) from l where {l} and x >= (select min(x) from p)",
    "select name, x from p where id = 2 or name = 'a' and id > 1",
    "select count(*) from p where id between 2 and 3 and cast(id as varchar) <> '2'",
]


@st.composite
def statements(draw: st.DrawFn) -> str:
    """A statement whose answer has one order, or is compared without."""
    form = draw(st.sampled_from(FORMS))
    # The library runs no subquery in the condition of an outer join.
    subqueries = " join " not in form
    return form.format(l=draw(conditions("l", subqueries)), r=draw(conditions("r", subqueries)))


def answer(plan: Plan, hosts: dict[int, Any]) -> Any:
    asked = [rows for number, rows in hosts.items() if number not in plan.without]
    parts = [wire.encode(part(plan, {name: (SCHEMAS[name], batches) for name, batches in rows.items()})) for rows in asked]
    return finish(plan, [wire.decode(one, 1 << 26) for one in parts])


@pytest.mark.timeout(150)  # some hundred jobs, on a busy machine
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(rows=st.lists(ROWS, min_size=len(HOSTS), max_size=len(HOSTS)), sql=statements(), cut=st.booleans())
def test_answer_of_fewer_hosts_is_that_of_all(rows: list[Any], sql: str, cut: bool) -> None:
    hosts = {number: tables(number, each) for number, each in zip(HOSTS, rows, strict=True)}
    all_rows = {name: (SCHEMAS[name], [batch for each in hosts.values() for batch in each[name]]) for name in SCHEMAS}
    stated = gate.statement(sql, all_rows)
    wanted = [row for batch in stated.session.run(stated.frame.execution_plan()) for row in rows_of(pa.Table.from_batches([batch]))]
    plan = make(sql, SCHEMAS, cut=cut, hosts=KNOWN)
    assert 6 not in plan.without
    assert equal(rows_of(answer(plan, hosts)), wanted, ordered=False), sql


@pytest.mark.parametrize(
    ("sql", "asked"),
    [
        ("select * from l where host = 'a'", {1, 4}),
        ("select count(*) from l v where v.host in ('b', 'B', 'z') and x = 3", {2, 3}),
        ("select * from l where (host = 'b' and x = 1) or (host = 'c' and x = 2)", {2, 5}),
        ("select * from l where host = 'b' or x = 1", {1, 2, 3, 4, 5}),
        ("with v as (select * from l) select count(*) from v where lower(host) = 'b'", {2, 3}),
        ("select l.x from l join p on l.host = p.name where p.name = 'c'", {5}),
        ("select name from p where id = 4", {4}),
        ("select x from l where host = 'a' union all select x from p where id = 2", {1, 2, 4}),
        ("select x from l where host = 'z'", set()),
        ("explain analyze select x from l where host = 'c'", {5}),
        # The conditions of these decide after rows of all hosts were looked at.
        ("select * from (select host, count(*) over () n from l) where host = 'a'", {1, 2, 3, 4, 5}),
        ("select * from (select * from l limit 1) where host = 'a'", {1, 2, 3, 4, 5}),
        ("select x from l where host = (select max(name) from p)", {1, 2, 3, 4, 5}),
        ("select x from l where host = 'a' and x >= (select min(x) from p)", {1, 2, 3, 4, 5}),
        ("select x from l where random() < 0.5 or host = 'a'", {1, 2, 3, 4, 5}),
        ("select x from o where host = 'a'", {1, 2, 3, 4, 5}),
    ],
)
def test_only_hosts_with_possible_rows_are_asked(sql: str, asked: set[int]) -> None:
    assert KNOWN.keys() - set(make(sql, SCHEMAS, hosts=KNOWN).without) == asked


def test_marked_columns_are_those_of_the_own_host() -> None:
    marked = {f"{name}.{one.name}": one.of_host for name, table in TABLES.items() for one in table.columns if one.of_host}
    live = {f"{name}.host": "name" for name in ("stacks", "live_procs", "live_actors", "live_queues", "memory")}
    kept = {f"{name}.host": "name" for name in ("logs", "resources", "telemetry_status")}
    assert marked == {**live, **kept, "hosts.name": "name", "hosts.host_id": "number", "procs.host_id": "number"}


@pytest.mark.parametrize(
    "sql", ["select rank, count(*) from live_procs('m') where host = 'b' group by rank", "select line from logs where host = 'b'"]
)
def test_tables_and_functions_of_a_host_are_pruned(sql: str) -> None:
    assert make(sql, schemas(), hosts={1: "a", 2: "b"}).without == (1,)


def test_plan_of_hosts_by_time_is_made_anew() -> None:
    known, made_ = KnownPlans(), list[str]()
    for sql in ("select x from l where host = 'a' and x > cast(now() as bigint)", "select x from l where host = 'a'"):
        for hosts in (KNOWN, KNOWN, HOSTS):

            def plan(sql: str = sql, hosts: Any = hosts) -> Plan:
                made_.append(sql)
                return make(sql, SCHEMAS, hosts=hosts)

            known.plan(sql, SCHEMAS, DEFAULT, True, plan, hosts)
    assert ["now" in sql for sql in made_] == [True, True, True, False, False]


@pytest.mark.parametrize("group", [2, 16])
def test_excluded_host_is_neither_asked_nor_missing(monkeypatch: pytest.MonkeyPatch, group: int) -> None:
    engine = made(monkeypatch, SCHEMAS, group)
    rows = {"l": [(1, None)], "p": [], "o": []}
    hosts = [StandIn(f"hosts[{number}]", SCHEMAS, tables(number, rows), name) for number, name in HOSTS.items()]
    engine.hosts.extend(hosts)
    hosts[1].is_stopped = True
    hosts[2].lose()
    hosts[5].hostname = None
    got = engine.ask("select host, x from l where host in ('a', 'c')", timeout=ANSWER_TIMEOUT, require_all=True)
    assert sorted(got.table.column("host").to_pylist()) == ["a", "a", "c"]
    assert (got.coverage.hosts_asked, got.coverage.hosts_answered, got.coverage.missing) == (4, 4, ())
    assert [host.asked for host in hosts] == [1, 0, 0, 1, 1, 1]
    none = engine.ask("select count(*) n from l where host = 'z'", timeout=ANSWER_TIMEOUT)
    assert none.table.to_pylist() == [{"n": 0}] and none.coverage.hosts_asked == 1
    missing = engine.ask("select count(*) n from l where host >= 'a'", timeout=ANSWER_TIMEOUT).coverage.missing
    assert [one.host for one in missing] == ["hosts[2]"]
