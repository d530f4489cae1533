"""The first gate of statements whose plan would be far larger than their text."""

from __future__ import annotations

import pytest

from monarch.telemetry import QueryError
from monarch.telemetry._queries import catalog
from monarch.telemetry._sql import expansion


def chained(depth: int, body: str, first: str = "SELECT seq AS x FROM logs") -> str:
    """Expressions of WITH, each `body` over the one before it."""
    each = "".join(f", a{n} AS ({body.replace('{}', f'a{n - 1}')})" for n in range(1, depth))
    return f"WITH a0 AS ({first}){each} SELECT count(*) FROM a{depth - 1}"


def columns(count: int) -> str:
    return ", ".join(f"seq + {n}" for n in range(count))


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        (f"SELECT count(*) FROM logs GROUP BY CUBE({columns(30)})", "grouping sets"),
        (f'SELECT 1 FROM logs GROUP BY "x", cube /* ( */ ({columns(13)})', "grouping sets"),
        (f"SELECT 1 FROM logs GROUP BY ROLLUP({columns(70)}), ROLLUP({columns(70)})", "grouping sets"),
        ("SELECT 1 FROM logs GROUP BY " + ", ".join(["GROUPING SETS ((seq), (host), (line), ())"] * 7), "grouping sets"),
        (f"SELECT 1 FROM logs GROUP BY GROUPING SETS (CUBE({columns(12)}), ROLLUP(host, line))", "grouping sets"),
        (chained(40, "SELECT * FROM {} UNION ALL SELECT * FROM {}"), "references"),
        (chained(13, "SELECT l.x FROM {} l JOIN {} r ON l.x = r.x"), "references"),
        (chained(30, "SELECT CASE WHEN x > 1 THEN x ELSE x + 1 END AS x FROM {}"), "names a column"),
        (chained(30, 'SELECT "x" || "x" AS "x" FROM "{}"'), "names a column"),
    ],
)
def test_statements_too_large_are_refused(sql: str, words: str) -> None:
    with pytest.raises(QueryError, match=words) as caught:
        expansion.check(sql)
    assert "hint: " in str(caught.value)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1",
        f"SELECT count(*) FROM logs GROUP BY CUBE({columns(8)})",
        "SELECT count(*) FROM logs GROUP BY ROLLUP(host, (proc, pid), line), GROUPING SETS ((seq), ())",
        chained(9, "SELECT * FROM {} UNION ALL SELECT * FROM {}"),
        # In conditions a column is only read, and each column of the answer is counted separately.
        chained(30, "SELECT x, x + 1 AS y FROM {} WHERE x > 1 AND x < 5 AND x <> 3 ORDER BY x"),
        "SELECT ')) cube((' AS a, \"with\" FROM logs -- CUBE(1,2,3,4,5,6,7,8,9,10,11,12,13,14)",
        "WITH a AS (SELECT 1",
        "WITH ) AS ( SELECT cube(( GROUPING SETS",
        *(one.sql for one in catalog.load({}).queries.values()),
    ],
)
def test_other_statements_pass(sql: str) -> None:
    expansion.check(sql)
