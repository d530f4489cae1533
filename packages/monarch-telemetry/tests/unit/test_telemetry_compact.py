"""Compact answers: never more bytes than they may have, complete lines, nothing left out without a word about it."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monarch.telemetry import QueryError
from monarch.telemetry._agents import compact
from monarch.telemetry._agents.pages import Kept, Pages
from monarch.telemetry._sql.coverage import Coverage, Missing

NUMBERS = pa.table({"n": pa.array(range(10_000), pa.uint64()), "text": [f"line {number} " + "x" * 40 for number in range(10_000)]})


def cursor(text: str) -> str:
    """The cursor in the head of an answer."""
    return text.split('next: cursor "')[1].split('"')[0]


def test_values_stand_between_tabs() -> None:
    table = pa.table({"a\tb": ["x\ty\n", None], "timestamp_us": [1_700_000_000_000_000, 1], "ok": [True, False], "list": [[1], []]})
    page = compact.rows(table, 0, 10)
    assert page.lines == ["a\\tb\ttimestamp_us\tok\tlist", "x\\ty\\n\t1700000000000000\ttrue\t[1]", "null\t1\tfalse\t[]"]
    assert page[1:] == (0, 2)


def test_long_values_state_what_is_left_out() -> None:
    page = compact.rows(pa.table({"line": ["y" * 1300]}), 0, 1)
    assert page.lines[1] == "y" * 300 + "…+1000"


def test_pages_have_all_rows_once() -> None:
    pages = Pages()
    text = pages.first(Kept("hosts: 1 of 1", NUMBERS, 300))
    seen: list[int] = []
    answers = 0
    while True:
        answers += 1
        lines = text.split("\n")
        assert lines[0] == "hosts: 1 of 1" and len(text.encode()) <= compact.MOST_BYTES
        rows = [int(line.split("\t")[0]) for line in lines[3:]]
        assert lines[1].startswith(f"rows {rows[0] + 1} to {rows[-1] + 1} of 10000; ") and len(rows) <= 300
        seen += rows
        if "cursor" not in lines[1]:
            assert lines[1].endswith("; the last")
            break
        text = pages.next(cursor(lines[1]))
    assert seen == list(range(10_000)) and answers == 34


def test_newest_rows_stand_last_on_each_page() -> None:
    pages = Pages()
    first = pages.first(Kept("", pa.table({"n": [5, 4, 3, 2, 1]}), 2, newest_last=True))
    second = pages.next(cursor(first))
    assert [first.split("\n")[2:], second.split("\n")[2:]] == [["n", "4", "5"], ["n", "2", "3"]]


def test_lines_of_a_text_have_pages_too() -> None:
    pages = Pages()
    first = pages.first(Kept("stacks", lines=[f"frame {number} {'z' * 100}\x1b" for number in range(1000)]))
    assert len(first.encode()) <= compact.MOST_BYTES and "\x1b" not in first
    last = first.split("\n")[-1].split()[1]
    assert pages.next(cursor(first)).split("\n")[2].startswith(f"frame {int(last) + 1} ")


def test_invalid_or_expired_cursor_is_refused() -> None:
    pages = Pages(answers=2)
    old = cursor(pages.first(Kept("", NUMBERS, 10)))
    kept = [cursor(pages.first(Kept("", NUMBERS, 10))) for _ in range(2)]
    assert all("rows 11 to 20" in pages.next(one) for one in kept)
    with pytest.raises(QueryError, match=f"'{old}' is not kept any more\nhint: ask again"):
        pages.next(old)
    for wrong in ("", "1", "a:b", "1:2:3", "-1:0", "1:" + "9" * 20, "٣:1"):
        with pytest.raises(QueryError, match="is no cursor"):
            pages.next(wrong)
    assert pages.next(kept[0].split(":")[0] + ":99999").split("\n")[1] == "no rows after 99999 of 10000"


def test_kept_answers_have_bounded_bytes() -> None:
    pages = Pages(size=2 * NUMBERS.nbytes)
    cursors = [cursor(pages.first(Kept("", NUMBERS, 10))) for _ in range(4)]
    for at, one in enumerate(cursors):
        if at < 2:
            with pytest.raises(QueryError):
                pages.next(one)
        else:
            pages.next(one)


def test_coverage_names_missing_hosts_and_truncation() -> None:
    assert compact.coverage(Coverage(2, 2, rows_scanned=7, elapsed_ms=3.4)) == "hosts: 2 of 2; scanned 7 rows in 3 ms"
    lost = tuple(Missing(f"host{number}", "no answer\nwithin " + "8" * 500) for number in range(500))
    text = compact.coverage(Coverage(501, 1, lost, truncated=True))
    assert text.startswith("hosts: 1 of 501; missing: host0 (no answer\\nwithin 8") and "and 480 more" in text
    assert "TRUNCATED: rows are missing" in text and len(text) < 2600 and "\n" not in text


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 40),
    st.lists(st.sampled_from(["", "a", "é" * 200, "界" * 5000, "\x1b" * 700, "\U000e0041" * 300]), min_size=1, max_size=30),
    st.integers(1, 100),
)
def test_no_answer_has_more_bytes_than_it_may(columns: int, texts: list[str], most: int) -> None:
    table = pa.table({f"column {number} {text[:50]}": texts for number, text in enumerate((texts * columns)[:columns])})
    pages = Pages()
    text = pages.first(Kept("head", table, most))
    assert len(text.encode()) <= compact.MOST_BYTES and "\x1b" not in text
    place = text.split("\n")[1]
    rows = int(place.split()[3]) if place.startswith("rows") else len(texts)
    assert len(text.split("\n")) - 3 == rows >= 1


def test_more_columns_than_fit_are_stated() -> None:
    table = pa.table({f"column_with_a_long_name_{number:05}_{'n' * 200}": ["v" * 400] for number in range(2000)})
    text = Pages().first(Kept("head", table, 10))
    assert "of 2000 columns: select fewer" in text and len(text.encode()) <= compact.MOST_BYTES and text.count("vvv") > 10
