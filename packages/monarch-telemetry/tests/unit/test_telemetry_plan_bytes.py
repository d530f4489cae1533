"""The bytes of plans: what a new version of datafusion has to pass, and that other bytes are refused."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monarch.telemetry._sql import cuts
from monarch.telemetry._sql.context import Session
from monarch.telemetry._sql.plan_bytes import UnknownPlan, partial_reduce, replaced

SCHEMA = pa.schema([("g", pa.string()), ("x", pa.int64())])
SQL = "select g, avg(x) a, count(*) from t group by g order by a"


def planned(session: Session, sql: str = SQL) -> object:
    return session.frame(sql).execution_plan()


def test_scan_replaces_a_node_of_any_size() -> None:
    session = Session({"t": (SCHEMA, ())})
    plan = session.frame("select g, x from t where x > 1 order by x").execution_plan()
    (cut,) = cuts.cuts(plan)
    rows = pa.RecordBatch.from_pydict({"g": ["a" * 100] * 500, "x": list(range(500))}, schema=SCHEMA)
    scan = session.scan([rows], SCHEMA)
    edited = session.plan(replaced(plan.to_bytes(), cuts.at(plan, cut.node).to_bytes(), scan.to_bytes()))
    assert "FilterExec" not in cuts.shape(edited)
    assert sum(batch.num_rows for batch in session.run(edited)) == 500


def test_final_aggregate_becomes_a_partial_reduce() -> None:
    session = Session({"t": (SCHEMA, ())})
    plan = session.frame(SQL).execution_plan()
    (cut,) = cuts.cuts(plan)
    assert cut.final is not None
    final, partial = cuts.at(plan, cut.final), cuts.at(plan, cut.node)
    assert cuts.line(final).startswith("AggregateExec: mode=FinalPartitioned")
    reducer = session.plan(partial_reduce(final.to_bytes(), partial.to_bytes()))
    assert cuts.line(reducer).startswith("AggregateExec: mode=PartialReduce")


def test_bytes_outside_the_plan_are_refused() -> None:
    session = Session({"t": (SCHEMA, ())})
    plan = session.frame(SQL).execution_plan().to_bytes()
    for other in (b"", b"\x0a\x03abc", plan + b"x", plan[3:20]):
        with pytest.raises(UnknownPlan):
            replaced(plan, other, b"")
    scan = session.scan([], SCHEMA).to_bytes()
    for one, two in ((scan, plan), (plan, scan), (b"", plan), (b"\x0a\xff\xff\xff\xff\x0f", plan), (b"\x0b", plan)):
        with pytest.raises(UnknownPlan):
            partial_reduce(one, two)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=40), st.binary(max_size=8), st.binary(max_size=8))
def test_any_bytes_are_edited_or_refused(plan: bytes, old: bytes, new: bytes) -> None:
    for edit in (lambda: replaced(plan, old, new), lambda: partial_reduce(plan, old)):
        try:
            edit()
        except UnknownPlan:
            continue


def test_lengths_of_all_enclosing_fields_follow() -> None:
    def wrapped(inner: bytes, times: int) -> bytes:
        for _ in range(times):
            size = bytearray()
            number = len(inner)
            while number > 127:
                size.append(number & 127 | 128)
                number >>= 7
            inner = b"\x08\x01\x0a" + bytes([*size, number]) + inner + b"\x15abcd"
        return inner

    for size in (0, 1, 127, 128, 20_000):
        assert replaced(wrapped(b"\x12\x01o", 5), b"\x12\x01o", b"n" * size) == wrapped(b"n" * size, 5)
