"""Answers as text and for programs: every value exact, nothing that a terminal acts upon."""

from __future__ import annotations

import csv
import datetime
import decimal
import io
import json
import unicodedata

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monarch.telemetry._queries import formats, values

BIG = (1 << 64) - 1
# Escape sequences, a bell, a reversed name, line ends of several kinds, a surrogate.
NASTY = "\x1b[2J\x07\u202egpj\x9b1m\n\t\r\u2028\x7f"


def written(table: pa.Table, form: formats.Format, *, terminal: bool = False) -> str:
    out = io.BytesIO()
    formats.write(table, form, out, terminal=terminal)
    return out.getvalue().decode()


def records(table: pa.Table) -> list[dict[str, object]]:
    found = json.loads(written(table, "json"))
    assert [json.loads(line) for line in written(table, "jsonl").splitlines()] == found
    return found


def test_identifiers_stay_exact() -> None:
    table = pa.table({"id": pa.array([BIG, None, 0], pa.uint64()), "low": pa.array([-(1 << 63), 2, 3], pa.int64())})
    assert records(table) == [{"id": BIG, "low": -(1 << 63)}, {"id": None, "low": 2}, {"id": 0, "low": 3}]
    assert written(table, "csv") == f"id,low\n{BIG},{-(1 << 63)}\n,2\n0,3\n"
    assert str(BIG) in written(table, "table")
    out = io.BytesIO()
    formats.write(table, "arrow", out)
    assert pa.ipc.open_stream(out.getvalue()).read_all().equals(table)


def test_text_table_is_aligned() -> None:
    table = pa.table(
        {"name": ["a", "日本", None, "e\u0301x"], "n": pa.array([1, 22, None, 333], pa.int32()), "ok": [True, False, None, True]}
    )
    assert written(table, "table").splitlines() == [
        "name     n  ok",
        "----  ----  -----",
        "a        1  true",
        "日本    22  false",
        "NULL  NULL  NULL",
        "e\u0301x     333  true",
    ]


def test_times_are_iso_formatted_in_text_tables_only() -> None:
    at = 1_700_000_000_123_456
    table = pa.table({"timestamp_us": [at, 5], "latency_max_us": [5000, 7], "oldest_since": [at, at], "bytes": [at, at]})
    first = written(table, "table").splitlines()[2]
    shown = f"{at} 2023-11-14T22:13:20.123456Z"
    assert first == f"{shown}            5000  {shown}  {at}"
    assert records(table)[0] == {"timestamp_us": at, "latency_max_us": 5000, "oldest_since": at, "bytes": at}
    assert written(table, "csv").splitlines()[1] == f"{at},5000,{at},{at}"


def test_wide_values_and_many_rows_are_cut() -> None:
    table = pa.table({"line": ["x" * 500, "界" * 90] + ["y"] * 40})
    shown = "".join(formats.text_table(table, rows=10, width=20)).splitlines()
    assert shown[2] == "x" * 19 + "…" and shown[3] == "界" * 9 + "…" and shown[-1] == "… 32 more rows" and len(shown) == 13
    assert "".join(formats.text_table(table, rows=41)).splitlines()[-1] == "… 1 more row"
    assert len("".join(formats.text_table(table, rows=42)).splitlines()) == 44


def test_nothing_reaches_a_terminal_that_it_acts_upon() -> None:
    table = pa.table({f"n\x1b]0;{NASTY}": [NASTY], "list": [[NASTY]]})
    for form in ("table", "json", "jsonl"):
        text = written(table, form)
        assert all(character == "\n" or unicodedata.category(character)[0] not in "CZ" or character == " " for character in text), form
    assert "\\x1b[2J\\x07\\u202egpj\\x9b1m\\n\\t\\r\\u2028\\x7f" in written(table, "table")
    assert records(table)[0]["list"] == [NASTY]
    assert "\x1b" in written(table, "csv") and "\x1b" not in written(table, "csv", terminal=True)


def test_second_column_of_a_name_gets_a_number() -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2]), pa.array([3]), pa.array([4])], names=["id", "id", "id_2", "id"])
    assert records(table) == [{"id": 1, "id_2": 2, "id_2_2": 3, "id_3": 4}]


def test_values_of_every_type_have_a_form() -> None:
    moment = datetime.datetime(2024, 2, 29, 1, 2, 3, 4)
    table = pa.table(
        {
            "ns": pa.array([1_700_000_000_000_000_001], pa.timestamp("ns", "UTC")),
            "us": pa.array([moment], pa.timestamp("us")),
            "s": pa.array([1 << 60], pa.timestamp("s")),
            "date": [moment.date()],
            "time": [moment.time()],
            "duration": pa.array([5], pa.duration("ms")),
            "interval": pa.array([(1, 2, 3)], pa.month_day_nano_interval()),
            "bytes": [b"\x00\xff"],
            "decimal": [decimal.Decimal("1.50")],
            "struct": [{"a": [1, None], "b": b"x"}],
            "map": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
            "null": pa.nulls(1),
            "nan": [float("nan")],
            "inf": [float("-inf")],
            "float": [0.1],
            "view": pa.array(["v"], pa.string_view()),
            "dictionary": pa.array(["d"]).dictionary_encode(),
        }
    )
    assert records(table)[0] == {
        "ns": "2023-11-14T22:13:20.000000001Z",
        "us": "2024-02-29T01:02:03.000004",
        "s": f"{1 << 60} s",
        "date": "2024-02-29",
        "time": "01:02:03.000004",
        "duration": "5 ms",
        "interval": "MonthDayNano(months=1, days=2, nanoseconds=3)",
        "bytes": "00ff",
        "decimal": "1.50",
        "struct": {"a": [1, None], "b": "78"},
        "map": [["k", 1]],
        "null": None,
        "nan": "NaN",
        "inf": "-Infinity",
        "float": 0.1,
        "view": "v",
        "dictionary": "d",
    }
    for form in ("table", "csv"):
        assert '"a": [1, null]' in written(table, form).replace('""', '"')


def test_answers_without_rows_or_columns() -> None:
    empty = pa.table({"a": pa.array([], pa.int64())})
    assert [written(empty, form) for form in ("table", "json", "jsonl", "csv")] == ["a\n-\n", "[]\n", "", "a\n"]
    assert written(pa.table({}), "table") == "(no columns)\n"


def test_many_batches_are_one_answer() -> None:
    table = pa.concat_tables([pa.table({"n": list(range(at, at + 3))}) for at in range(0, 15_000, 3)])
    assert [row["n"] for row in records(table)] == list(range(15_000))
    assert list(values.rows(table, 14_998)) == [(14_998,), (14_999,)] and list(values.rows(table, 3, 5)) == [(3,), (4,)]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.none() | st.text(), st.none() | st.text()), max_size=8))
def test_csv_and_json_give_back_every_text(rows: list[tuple[str | None, str | None]]) -> None:
    clean = [tuple(None if one is None else one.encode("utf-8", "replace").decode() for one in row) for row in rows]
    table = pa.table({"a": pa.array([row[0] for row in clean], pa.string()), "b": pa.array([row[1] for row in clean], pa.string())})
    assert [tuple(row.values()) for row in records(table)] == clean
    text = written(table, "csv")
    read = list(csv.reader(io.StringIO(text, newline="")))
    assert read == [["a", "b"], *([one or "" for one in row] for row in clean)]
    # An empty text differs from no value.
    assert (',""' in text or '"",' in text) or all(one != "" for row in clean for one in row)


@pytest.mark.parametrize("character", ["\ud800", "\U000e0041", "\ufeff"])
def test_characters_beyond_the_basic_plane_are_escaped_too(character: str) -> None:
    assert values.printable(character).startswith("\\") and json.loads(values.json_printable(f'"{character}"')) == character
