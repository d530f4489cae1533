"""Errors of statements: what the user has to change, without the parts of the library."""

from __future__ import annotations

import pytest
from support import made_up_faults as job
from support.engine import Engine

from monarch.telemetry.errors import QueryError

NOW = "CAST(to_unixtime(now()) AS BIGINT) * 1000000"
TIMES = f"\nhint: columns that end in _us are microseconds since the epoch, and now is {NOW}"
# Words of the library about its internal parts, which no statement contains.
INSIDE = ("Optimizer rule", "type_coercion", "caused by", "Internal error", "Execution error", "Arrow error", "bug", "planning:", "Span(")


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine(job.batches(job.healthy()))


@pytest.mark.parametrize(
    ("sql", "text"),
    [
        ("SELECT * FROM messages LIMIT -1", "LIMIT must be >= 0, '-1' was provided"),
        ("SELECT * FROM messages LIMIT 1 OFFSET -1", "OFFSET must be >=0, '-1' was provided"),
        ("SELECT * FROM messages LIMIT 'a'", "Expected LIMIT to be an integer or null, but got Utf8"),
        ("SELECT CAST('abc' AS INT)", "Cannot cast string 'abc' to value of Int32 type"),
        ("SELECT CAST(endpoint AS INT) FROM messages", "Cannot cast string 'step' to value of Int32 type"),
        ("SELECT rank / 0 FROM actors", "Divide by zero error"),
        ("SELECT to_timestamp('soon')", "Error parsing timestamp from 'soon': timestamp must contain at least 10 characters"),
        ("SELECT ntile(-1) OVER () FROM logs", "NTILE requires a positive integer"),
        ("SELECT substr(line) FROM logs", "Substring without for/from is not valid"),
        (
            "SELECT * FROM logs WHERE timestamp_us > now()",
            f"Cannot infer common argument type for comparison operation Int64 > Timestamp(ns){TIMES}",
        ),
        ("SELECT timestamp_us + INTERVAL '1 s' FROM logs", f"Cannot automatically convert Int64 to Interval(MonthDayNano){TIMES}"),
        (
            "SELECT max(rank, 2) FROM logs",
            "line 1, column 8: no function takes these arguments: max(UInt64, Int64) "
            "(min/max was called with 2 arguments. It requires only 1)",
        ),
    ],
)
def test_error_has_what_the_statement_needs(engine: Engine, sql: str, text: str) -> None:
    with pytest.raises(QueryError) as error:
        engine.ask(sql)
    assert str(error.value) == text


@pytest.mark.parametrize("function", ["sum", "avg", "median"])
def test_function_of_other_types_is_named_with_them(engine: Engine, function: str) -> None:
    with pytest.raises(QueryError) as error:
        engine.ask(f"SELECT 1 AS one,\n  {function}(endpoint)\nFROM messages")
    said, _, hint = str(error.value).partition("\nhint: ")
    assert said == f"line 2, column 3: no function takes these arguments: {function}(Utf8)"
    assert f"{function}(Float64)" in hint and hint.endswith("CAST(x AS type) has another type")
    assert not any(word in str(error.value) for word in INSIDE)


def test_expression_of_the_hint_is_right(engine: Engine) -> None:
    (row,) = engine.ask(f"SELECT count(*) AS n FROM logs WHERE timestamp_us > {NOW}").table.to_pylist()
    assert row == {"n": 0}
