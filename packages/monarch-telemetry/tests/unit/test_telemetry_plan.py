"""The answer of many hosts is that over all their rows, whatever the statement and the way it goes."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from monarch.telemetry import QueryError, QueryLimit, QueryTimeout
from monarch.telemetry._sql import gate, wire
from monarch.telemetry._sql.limits import Limits
from monarch.telemetry._sql.plan import Plan, PlanMismatch, finish, make, merge, part

NAMES = pa.dictionary(pa.int32(), pa.string())
SCHEMAS = {
    "t": pa.schema([("g", pa.string()), ("x", pa.int64()), ("y", pa.float64()), ("b", pa.bool_()), ("d", NAMES), ("u", pa.uint64())]),
    "s": pa.schema([pa.field("g", pa.string(), nullable=False), ("x", pa.int64()), ("note", pa.string())]),
}
SHIP = 1 << 26


def batch(name: str, rows: list[dict[str, Any]]) -> Any:
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMAS[name])


def answer(sql: str, hosts: list[dict[str, list[Any]]], levels: int = 0, *, cut: bool = True, way: str | None = None) -> Any:
    """As a job does it: the plan and the parts travel as bytes, `levels` of interior hosts merge two parts each."""
    plan = make(sql, SCHEMAS, cut=cut)
    assert way in {None, plan.way}, plan
    sent = Plan.from_json(plan.to_json(), SCHEMAS)
    parts = [wire.encode(part(sent, {name: (SCHEMAS[name], rows) for name, rows in host.items()})) for host in hosts]
    for _ in range(levels):
        parts = [wire.encode(merge(sent, [wire.decode(one, SHIP) for one in parts[at : at + 2]])) for at in range(0, len(parts), 2)]
    return finish(plan, [wire.decode(one, SHIP) for one in parts])


def union(sql: str, hosts: list[dict[str, list[Any]]]) -> list[tuple[Any, ...]]:
    tables = {name: (SCHEMAS[name], [rows for host in hosts for rows in host.get(name, [])]) for name in SCHEMAS}
    stated = gate.statement(sql, tables)
    return rows_of(collected(stated))


def collected(stated: gate.Statement) -> Any:
    batches = list(stated.session.run(stated.frame.execution_plan()))
    return pa.Table.from_batches(batches) if batches else None


def rows_of(table: Any) -> list[tuple[Any, ...]]:
    return [] if table is None else list(zip(*(column.to_pylist() for column in table.columns), strict=True)) if table.num_columns else []


def key(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple((value is None, round(value, 3) if isinstance(value, float) else value if value is not None else 0) for value in row)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-6) or (math.isnan(one) and math.isnan(other))
    return one == other


def equal(got: list[tuple[Any, ...]], wanted: list[tuple[Any, ...]], *, ordered: bool) -> bool:
    if not ordered:
        got, wanted = sorted(got, key=key), sorted(wanted, key=key)
    return len(got) == len(wanted) and all(same(a, b) for one, two in zip(got, wanted, strict=True) for a, b in zip(one, two, strict=True))


ROW = st.fixed_dictionaries(
    {
        "g": st.sampled_from([None, "a", "b", "c"]),
        "x": st.one_of(st.none(), st.integers(-5, 5)),
        # Quarters: sums do not depend on their order.
        "y": st.one_of(st.none(), st.integers(-20, 20).map(lambda n: n / 4)),
        "b": st.sampled_from([None, True, False]),
        "d": st.sampled_from([None, "p", "q", "r"]),
        "u": st.one_of(st.none(), st.integers(0, 9)),
    }
)
NOTE = st.fixed_dictionaries(
    {"g": st.sampled_from(["a", "b", "z"]), "x": st.one_of(st.none(), st.integers(-2, 2)), "note": st.sampled_from([None, "m", "n'q"])}
)
HOST = st.fixed_dictionaries(
    {
        "t": st.lists(st.lists(ROW, max_size=6).map(lambda rows: batch("t", rows)), max_size=2),
        "s": st.lists(st.lists(NOTE, max_size=4).map(lambda rows: batch("s", rows)), max_size=2),
    }
)
HOSTS = st.lists(HOST, min_size=1, max_size=5)

FILTERS = [
    "true",
    "x > 1",
    "g = 'a'",
    "y is not null and x <= 2",
    "b",
    "d in ('p', 'q')",
    "g like 'a%' or x is null",
    "x > 100",
    "u between 2 and 7",
]
AGGREGATES = [
    *(
        "count(*)",
        "count(x)",
        "sum(x)",
        "sum(y)",
        "min(y)",
        "max(x)",
        "avg(y)",
        "avg(x)",
        "var(y)",
        "var_pop(x)",
        "stddev(y)",
        "bool_and(b)",
    ),
    *(
        "bool_or(b)",
        "count(distinct x)",
        "approx_distinct(g)",
        "min(g)",
        "max(d)",
        "sum(x) filter (where b)",
        "count(distinct d)",
        "sum(u)",
    ),
    *("corr(x, y)", "median(x)", "approx_percentile_cont(y, 0.5)"),
]
GROUPS = ["g", "d", "g, b", "x % 2", "coalesce(g, 'none')", "u, d"]
WHOLE = [
    "select count(*) from t where {f}",
    "select count(*), min(x), max(y) from t",
    "select count(*) from t",
    "select distinct g, b from t where {f}",
    "select g from t where {f} union select g from s",
    "select g, x from t where {f} union all select g, x from s",
    "select t.g, t.x, s.note from t join s on t.g = s.g where {f0}",
    "select t.x, s.note from t left join s on t.g = s.g and s.x > 0",
    "select g, count(*) from t where x in (select x from s) group by g",
    "select x, y from t where y > (select avg(y) from t) and {f}",
    "select g, x, sum(x) over (partition by g) from t where {f}",
    "select * from (select g, x, row_number() over (partition by g order by x, y, b, d, u) n from t where {f}) where n = 1",
    "with a as (select g, count(*) c from t group by g), m as (select g, sum(x) z from s group by g)"
    " select a.g, c, z from a join m on a.g = m.g",
    "with a as (select g, b, sum(x) z from t where {f} group by g, b) select g, avg(z) from a group by g",
    "select g, b, count(*) from t where {f} group by rollup(g, b)",
    "select median(x), approx_percentile_cont(y, 0.9) from t where {f}",
    "select count(*) + (select count(*) from s) from t where {f}",
    "select g from t where {f} except select g from s",
    "select count(*) from (select g, x from s union all select 'k', 1)",
    "select g, array_length(array_agg(x)) from t group by g",
    "select s.g, v.k from s join (values ('a', 1), ('b', 2)) v(g, k) on s.g = v.g",
    "select count(*) from (select distinct x from t where {f})",
    "select sum(x) from t where 1 = 0",
    "select g, count(*) from t group by g union all select 'all', count(*) from t",
    "select g, count(*) from t group by g union all select g, count(*) from s group by g",
    "select case when x > 0 then 'up' else g end k, sum(y) from t where {f} group by 1",
    "select count(note), count(g), count(*) from s",
    "select g || '-' || d, upper(g), x + u from t where {f}",
    "select g, grouping(g), sum(x) from t group by grouping sets ((g), ())",
]


@st.composite
def statements(draw: st.DrawFn) -> tuple[str, bool]:
    """A statement, and whether its order is defined."""
    where = draw(st.sampled_from(FILTERS))
    form = draw(st.sampled_from(["whole", "whole", "grouped", "grouped", "total", "rows", "top"]))
    if form == "whole":
        return draw(st.sampled_from(WHOLE)).format(f=where, f0="t.x > 1"), False
    if form == "rows":
        columns = draw(st.sampled_from(["*", "g, x + 1 z", "d, y * 2 w", "b"]))
        return f"select {columns} from t where {where}", False
    if form == "top":
        fetch, skip = draw(st.integers(0, 6)), draw(st.sampled_from(["", " offset 2"]))
        # All columns: rows that are equal in the order are equal.
        return f"select x, y, g, b, d, u from t where {where} order by 1, 2 desc, 3, 4, 5, 6 limit {fetch}{skip}", True
    chosen = ", ".join(
        f"{one} as c{at}" for at, one in enumerate(draw(st.lists(st.sampled_from(AGGREGATES), min_size=1, max_size=4, unique=True)))
    )
    if form == "total":
        return f"select {chosen} from t where {where}", False
    group = draw(st.sampled_from(GROUPS))
    having = draw(st.sampled_from(["", " having count(*) > 1"]))
    order = draw(st.sampled_from(["", f" order by {group}", f" order by {group} limit 2", f" order by {group} desc limit 3 offset 1"]))
    return f"select {group}, {chosen} from t where {where} group by {group}{having}{order}", bool(order)


@pytest.mark.timeout(150)  # 150 jobs of several hosts, on a busy machine; hypothesis would take the limit for a changing result
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(hosts=HOSTS, stated=statements(), levels=st.integers(0, 2), cut=st.sampled_from([True, True, True, False]))
def test_distributed_answer_equals_the_answer_over_all_rows(hosts: Any, stated: tuple[str, bool], levels: int, cut: bool) -> None:
    sql, ordered = stated
    assert equal(rows_of(answer(sql, hosts, levels, cut=cut)), union(sql, hosts), ordered=ordered), sql


WAYS = [
    ("select 1", "local"),
    ("select count(*) from t", "states"),
    ("select count(*), min(x) from t where g = 'a'", "states"),
    ("select g, avg(y), stddev(y), bool_and(b), count(distinct x), approx_distinct(g) from t group by g", "states"),
    ("select g, count(*) c from t group by g having count(*) > 1 order by c desc, g limit 2", "states"),
    ("with a as (select g, b, sum(x) z from t group by g, b) select g, avg(z) from a group by g", "states"),
    ("select distinct g from t", "states"),
    ("select g from t union select g from s", "states"),
    ("select g, count(*) from t group by g union all select g, count(*) from s group by g", "states"),
    ("select * from t where x > 1", "rows"),
    ("select g, x + 1 from t order by x limit 3", "rows"),
    ("select x, row_number() over (order by x) from t where x > 0", "rows"),
    ("select g, x, sum(x) over (partition by g) from t where g = 'a'", "ship"),
    ("select median(x) from t", "ship"),
    ("select approx_percentile_cont(x, 0.5) from t", "ship"),
    ("select t.x, s.note from t join s on t.g = s.g", "ship"),
    ("select x from t where y > (select avg(y) from t)", "ship"),
]


@pytest.mark.parametrize(("sql", "way"), WAYS)
@pytest.mark.parametrize("levels", [0, 1, 2])
def test_each_kind_of_statement_goes_its_way(sql: str, way: str, levels: int) -> None:
    assert equal(rows_of(answer(sql, FIVE, levels, way=way)), union(sql, FIVE), ordered=False)


FIVE = [
    {
        "t": [
            batch(
                "t",
                [
                    {"g": "abc"[(host + at) % 3], "x": host * 4 + at, "y": at / 4, "b": at > 1, "d": "pq"[at % 2], "u": at}
                    for at in range(4)
                ],
            )
        ],
        "s": [batch("s", [{"g": "ab"[host % 2], "x": host, "note": "n"}])],
    }
    for host in range(4)
] + [{}]


@pytest.mark.parametrize("sql", [sql for sql, _ in WAYS[1:]])
def test_hosts_without_rows_answer_as_an_empty_table(sql: str) -> None:
    assert rows_of(answer(sql, [{}, {}], 1)) == union(sql, [{}, {}]) == rows_of(finish(make(sql, SCHEMAS), []))


def test_equal_keys_of_hosts_are_one_window_partition() -> None:
    rows = {"t": [batch("t", [{"g": None, "x": 1}])]}
    for hosts in ([rows, rows], [rows] * 4):
        got = answer("select g, row_number() over (partition by g order by x) n from t", hosts, way="rows")
        assert sorted(got.column("n").to_pylist()) == list(range(1, len(hosts) + 1))


def test_interior_host_passes_on_fewer_rows() -> None:
    plan = make("select g, sum(x), avg(y) from t group by g", SCHEMAS)
    parts = [part(plan, {"t": (SCHEMAS["t"], host["t"])}) for host in FIVE[:4]]
    assert sum(one.num_rows for each in parts for one in each) == 12
    assert sum(one.num_rows for one in merge(plan, parts)) == 3


def test_hosts_ship_the_first_rows_only() -> None:
    rows = [{"x": number} for number in range(1000)]
    plan = make("select x from t where x >= 10 order by x limit 5", SCHEMAS)
    parts = [part(plan, {"t": (SCHEMAS["t"], [batch("t", rows)])}) for _ in range(3)]
    assert all(sum(one.num_rows for one in each) <= 10 for each in parts)
    assert sum(one.num_rows for one in merge(plan, parts)) <= 10
    assert [row[0] for row in rows_of(finish(plan, [merge(plan, parts)]))] == [10, 10, 10, 11, 11]


def test_limit_without_order_ships_few_rows() -> None:
    rows = [{"x": number} for number in range(1000)]
    for sql, wanted in (
        ("select x from t limit 7", 7),
        ("select x from t where x > 500 limit 7 offset 3", 7),
        ("select distinct x from t limit 4", 4),
    ):
        plan = make(sql, SCHEMAS)
        parts = [part(plan, {"t": (SCHEMAS["t"], [batch("t", rows)])}) for _ in range(3)]
        assert "distinct" in sql or all(sum(one.num_rows for one in each) <= 20 for each in parts)
        assert finish(plan, [merge(plan, parts[:2]), parts[2]]).num_rows == wanted


def test_needed_columns_and_filtered_rows_are_shipped() -> None:
    plan = make("select median(x) from t where g = 'a'", SCHEMAS)
    shipped = part(plan, {"t": (SCHEMAS["t"], FIVE[0]["t"])})
    assert {name for one in shipped for name in one.schema.names} == {"g", "x"}
    assert {name for one in shipped for name in one.column("g").to_pylist()} == {"a"}


def test_random_filter_is_applied_once() -> None:
    plan = make("select median(x) from t where random() < 0.5", SCHEMAS)
    assert [fragment.sql for fragment in plan.fragments] == ['SELECT "x" FROM "t"']


def test_mismatched_plan_ships_rows_instead() -> None:
    plan = make("select g, sum(x) from t group by g", SCHEMAS)
    tables = {"t": (SCHEMAS["t"], FIVE[0]["t"])}
    with pytest.raises(PlanMismatch):
        part(plan._replace(shape="0 Another"), tables)
    again = make(plan.sql, SCHEMAS, cut=False)
    assert again.way == "ship"
    assert equal(rows_of(finish(again, [part(again, tables)])), union(plan.sql, FIVE[:1]), ordered=False)


def test_hosts_with_other_columns_are_named() -> None:
    plan = make("select x from t", SCHEMAS)
    good = part(plan, {"t": (SCHEMAS["t"], FIVE[0]["t"])})
    other = [wire.marked(pa.RecordBatch.from_pydict({"x": ["text"]}), "0")]
    with pytest.raises(QueryError, match="different versions"):
        finish(plan, [good, other])


@pytest.mark.parametrize(
    ("sql", "limits", "limit"),
    [
        ("select x from t", Limits(rows=15), "rows"),
        ("select x from t", Limits(bytes=100), "bytes"),
        ("select g, x from t order by x", Limits(rows=3), "rows"),
    ],
)
def test_answer_beyond_a_limit_names_it(sql: str, limits: Limits, limit: str) -> None:
    plan = make(sql, SCHEMAS)
    parts = [part(plan, {"t": (SCHEMAS["t"], host["t"])}) for host in FIVE[:4]]
    with pytest.raises(QueryLimit) as beyond:
        finish(plan, parts, limits=limits)
    assert (beyond.value.limit, beyond.value.reached > beyond.value.value) == (limit, True)
    assert "LIMIT" in str(beyond.value)


def test_memory_limit_holds_without_spill_files() -> None:
    rows = [batch("t", [{"g": f"group {number}", "x": number} for number in range(20_000)])]
    plan = make("select g, x from t order by g", SCHEMAS)
    parts = [part(plan, {"t": (SCHEMAS["t"], rows)})]
    with pytest.raises(QueryLimit, match="memory"):
        finish(plan, parts, limits=Limits(memory=1 << 18))
    with pytest.raises(QueryLimit, match="shipped bytes"):
        part(make("select g, x from t", SCHEMAS), {"t": (SCHEMAS["t"], rows)}, limits=Limits(memory=1 << 18))


def test_deadline_is_checked_between_batches() -> None:
    times = iter(range(1000))
    rows = [batch("t", [{"x": 1}])] * 100
    with pytest.raises(QueryTimeout):
        part(make("select x from t", SCHEMAS), {"t": (SCHEMAS["t"], rows)}, deadline=20, clock=lambda: next(times))


def test_request_can_only_lower_limits() -> None:
    assert Limits().narrowed(Limits(seconds=99, rows=5, bytes=1, memory=1 << 40)) == Limits(rows=5, bytes=1)


def test_errors_of_execution_are_errors_of_queries() -> None:
    with pytest.raises(QueryError, match="Divide by zero"):
        answer("select x / 0 from t", FIVE)
    with pytest.raises(QueryError, match="Divide by zero"):
        answer("select sum(x / 0) from t", FIVE)


def test_explain_analyze_runs_the_question() -> None:
    plan = make("explain analyze verbose select g, count(*) from t group by g", SCHEMAS)
    assert (plan.kind, plan.way, plan.sql) == ("analyze", "states", "select g, count(*) from t group by g")


@pytest.mark.parametrize("text", ["", "{}", "[]", "nonsense", '{"cuts": 1}', '{"cuts": [[1]], "fragments": []}'])
def test_malformed_plan_is_an_error(text: str) -> None:
    with pytest.raises(QueryError, match="no plan"):
        Plan.from_json(text, SCHEMAS)


def test_statement_slow_to_plan_ships_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    grouped = "SELECT x + 1 AS n, count(*) FROM t WHERE x > 1 GROUP BY 1"
    assert make(grouped, SCHEMAS).way == "states"
    assert "WHERE" in make("SELECT median(x) FROM t WHERE x > 1", SCHEMAS).fragments[0].sql
    monkeypatch.setattr("monarch.telemetry._sql.plan._HOST_PLANS", -1.0)
    for sql in (grouped, "SELECT median(x) FROM t WHERE x > 1", "SELECT x FROM t WHERE x > 1 LIMIT 3"):
        plan = make(sql, SCHEMAS)
        # Only the names of the columns of the statement.
        assert (plan.way, [one.sql for one in plan.fragments]) == ("ship", ['SELECT "x" FROM "t"'])
