"""Files of canned queries: their header, the folders of users, and what is left out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from monarch.telemetry import QueryError
from monarch.telemetry._queries.canned import LONGEST_FILE, NotCanned, parse
from monarch.telemetry._queries.catalog import load
from monarch.telemetry._queries.durations import seconds

GOOD = """-- name: idle_hosts
-- what: Hosts on which
--   no proc runs.
--
-- column host, state: the name of the host,
--   and its state
-- read: A host without procs
--   costs money.

-- Not reached by the header's reader? It is: a comment needs a key.
"""
QUERY = "SELECT name AS host, state FROM hosts -- all\n"


def test_header_has_name_sentence_columns_and_reading() -> None:
    one = parse(GOOD.rpartition("-- Not")[0] + QUERY, name="idle_hosts", source="f")
    assert (one.name, one.what, one.source) == ("idle_hosts", "Hosts on which no proc runs.", "f")
    assert one.columns == (("host, state", "the name of the host, and its state"),)
    assert one.read == "A host without procs costs money."
    assert one.sql == QUERY
    assert one.help().splitlines() == [
        "idle_hosts: Hosts on which no proc runs.",
        "  host, state: the name of the host, and its state",
        "  A host without procs costs money.",
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no line `-- name: ...`"),
        ("SELECT 1", "no line `-- name: ...`"),
        ("-- name: a\nSELECT 1", "no line `-- what: ...`"),
        ("-- name:\n-- what: b\nSELECT 1", "no line `-- name: ...`"),
        ("-- name: a\n-- what: b\n", "no statement"),
        ("-- name: a b\n-- what: b\nSELECT 1", "'a b'"),
        ("-- name: ../a\n-- what: b\nSELECT 1", "'../a'"),
        ("-- name: a\n-- name: a\n-- what: b\nSELECT 1", "line 2: a second `name`"),
        ("-- name: a\n-- what: b\n-- colour: red\nSELECT 1", "line 3: .*colour"),
        (GOOD + QUERY, "line 10"),
    ],
)
def test_broken_header_is_refused_with_its_line(text: str, why: str) -> None:
    with pytest.raises(NotCanned, match=why):
        parse(text)


def written(folder: Path, name: str, text: str | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.sql"
    path.write_text(f"-- name: {name}\n-- what: Of {folder.name}.\nSELECT 1\n" if text is None else text)
    return path


def test_users_files_come_before_those_of_the_wheel(tmp_path: Path) -> None:
    own = tmp_path / "home" / ".config" / "monarch" / "queries"
    written(own, "straggler")
    written(own, "mine")
    written(tmp_path / "first", "mine")
    written(tmp_path / "second", "mine")
    written(tmp_path / "second", "other")
    (own / "notes.txt").write_text("no query")
    found = load({"MONARCH_QUERY_PATH": f"{tmp_path / 'first'}::{tmp_path / 'second'}"}, tmp_path / "home")
    assert found.left_out == ()
    assert found.query("mine").what == "Of first." and found.query("other").what == "Of second."
    assert found.query("straggler").source == str(own / "straggler.sql")
    assert found.query("deadlock").source == "" and list(found.queries) == sorted(found.queries)
    lines = found.listing().splitlines()
    assert f"{'mine':<14}  Of first. ({tmp_path / 'first' / 'mine.sql'})" in lines and len(lines) == len(found.queries)


def test_broken_files_are_named_and_left_out(tmp_path: Path) -> None:
    written(tmp_path, "good")
    reasons = {
        "empty": (b"", "no line"),
        "renamed": (b"-- name: good\n-- what: b\nSELECT 1", "'good'"),
        "binary": (b"-- name: binary\n-- what: \xff", "no UTF-8 at byte 25"),
        "long": (b"-- name: long\n-- what: b\nSELECT 1" + b" " * LONGEST_FILE, "more than 32,768 bytes"),
    }
    for name, (data, _) in reasons.items():
        (tmp_path / f"{name}.sql").write_bytes(data)
    (tmp_path / "folder.sql").mkdir()
    os.mkfifo(tmp_path / "pipe.sql")
    (tmp_path / "gone.sql").symlink_to(tmp_path / "nowhere")
    found = load({"MONARCH_QUERY_PATH": f"{tmp_path}:{tmp_path / 'missing'}"}, tmp_path)
    assert found.query("good").what
    left_out = {Path(one.path).stem: one.reason for one in found.left_out}
    assert set(left_out) == {*reasons, "folder", "pipe", "gone", "missing"}
    assert all(reason in left_out[name] for name, (_, reason) in reasons.items())
    assert left_out["pipe"] == "this is no regular file" and "No such file" in left_out["gone"] and "No such file" in left_out["missing"]
    with pytest.raises(QueryError, match="'binary' is left out: .*binary.sql: no UTF-8"):
        found.query("binary")


def test_unknown_name_gets_the_nearest_one(tmp_path: Path) -> None:
    found = load({}, tmp_path)
    with pytest.raises(QueryError, match="'first_couse'\nhint: the nearest name is 'first_cause'"):
        found.query("first_couse")
    with pytest.raises(QueryError, match="monarch query --list"):
        found.query("zzz")


def test_lengths_of_time() -> None:
    assert [seconds(text) for text in ("10", "10s", "500ms", "2m", " 1.5h ", "3d", "250us")] == [10, 10, 0.5, 120, 5400, 259200, 250e-6]
    for text in ("", "0", "0s", "-1s", "10 s", "1e3", "inf", "nan", "s", "10w", "367d", "1.s", "٣s"):
        with pytest.raises(ValueError, match="no length of time"):
            seconds(text)
