"""The verb `query`: rows on stdout, everything else on stderr, and the exit codes."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pytest
from click.testing import CliRunner
from support import made_up_faults as job
from support.engine import Engine

from monarch.telemetry import TelemetryError, _cli
from monarch.telemetry._export.capture import write
from monarch.telemetry._sql.coverage import Missing
from monarch.telemetry._tables.catalog import catalog

LOST = (Missing("host3", "no answer within \x1b[31m8 s"),)


class Verb:
    """Runs the verb over an engine; `given` is how the engine was asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
        rows = job.healthy()
        job.first_cause(rows)
        self.engine = Engine(job.batches(rows))
        self.given: list[tuple[Any, ...]] = []
        self.error: Exception | None = None
        monkeypatch.setattr(_cli, "_engine", self._found)
        monkeypatch.setenv("HOME", str(home))
        monkeypatch.delenv("MONARCH_QUERY_PATH", raising=False)

    def _found(self, *given: Any) -> Engine:
        self.given.append(given)
        if self.error is not None:
            raise self.error
        return self.engine

    def __call__(self, *arguments: str, input: bytes | None = None) -> tuple[int, str, str]:
        done = CliRunner().invoke(_cli.query, arguments, input=input, standalone_mode=False)
        if isinstance(done.exception, click.ClickException):
            return done.exception.exit_code, done.stdout, done.exception.format_message()
        if done.exception is not None:
            raise done.exception
        return int(done.return_value), done.stdout, done.stderr


@pytest.fixture
def verb(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Verb:
    return Verb(monkeypatch, tmp_path)


def test_rows_go_to_stdout_in_every_format(verb: Verb) -> None:
    sql = "SELECT id, rank FROM actors ORDER BY rank LIMIT 2"
    first, second = job.actor(0), job.actor(1)
    assert verb(sql, "--format", "json") == (0, f'[\n{{"id": {first}, "rank": 0}},\n{{"id": {second}, "rank": 1}}\n]\n', "")
    assert verb(sql, "--format", "jsonl")[1].splitlines() == [f'{{"id": {first}, "rank": 0}}', f'{{"id": {second}, "rank": 1}}']
    assert list(csv.reader(io.StringIO(verb(sql, "--format", "csv")[1]))) == [["id", "rank"], [str(first), "0"], [str(second), "1"]]
    assert verb(sql)[1].splitlines()[2:] == [f"{first}     0", f"{second}     1"]
    done = CliRunner().invoke(_cli.query, [sql, "--format", "arrow"], standalone_mode=False)
    assert pa.ipc.open_stream(done.stdout_bytes).read_all().column("id").to_pylist() == [first, second]


def test_statement_comes_from_argument_stdin_or_file(verb: Verb, tmp_path: Path) -> None:
    file = tmp_path / "a.sql"
    file.write_text("\ufeffSELECT 'é' AS x -- a comment")
    wanted = (0, "x\né\n", "")
    assert verb("SELECT 'é' AS x", "--format", "csv") == wanted
    assert verb("-", "--format", "csv", input=file.read_bytes()) == wanted
    assert verb("-f", str(file), "--format", "csv") == wanted
    assert verb("-f", "-", "--format", "csv", input=file.read_bytes()) == wanted


def test_files_that_are_none_are_named(verb: Verb, tmp_path: Path) -> None:
    code, out, err = verb("-f", str(tmp_path / "missing.sql"))
    assert (code, out) == (1, "") and "missing.sql" in err and "No such file" in err
    (tmp_path / "b.sql").write_bytes(b"SELECT '\xff'")
    assert verb("-f", str(tmp_path / "b.sql")) == (1, "", f"monarch: {tmp_path / 'b.sql'} has no UTF-8 at byte 8\n")
    assert verb("-", input=b"\xfe")[2] == "monarch: stdin has no UTF-8 at byte 0\n"
    (tmp_path / "long.sql").write_text("SELECT 1" + " " * 100_000)
    assert "at most 16,384 bytes" in verb("-f", str(tmp_path / "long.sql"))[2]


@pytest.mark.parametrize(
    "arguments",
    [(), ("SELECT 1", "--list"), ("-f", "a", "-"), ("--run", "a", "--catalog"), ("SELECT 1", "SELECT 2"), ("--format", "xml", "-")],
)
def test_wrong_arguments_are_refused(verb: Verb, arguments: tuple[str, ...]) -> None:
    assert verb(*arguments)[0] == 2 and verb.given == []


def test_time_reaches_the_engine(verb: Verb) -> None:
    assert verb("SELECT 1", "--timeout", "500ms", "-a", "http://h:1", "--token-file", "t")[0] == 0
    assert verb("SELECT 1", "--timeout", "1m", "--all", "--from", "c.zip")[0] == 0
    assert [one[1:] for one in verb.engine.asked] == [(0.5, False), (60.0, True)]
    assert verb.given == [("http://h:1", "t", None), (None, None, "c.zip")]
    code, _, err = verb("SELECT 1", "--timeout", "soon")
    assert code == 2 and "'soon' is no length of time" in err
    assert verb("SELECT 1", "--timeout", "10m")[0] == 0
    code, _, err = verb("SELECT 1", "--timeout", "11m")
    assert code == 2 and "a query takes at most 600s" in err


def test_failed_query_is_one(verb: Verb) -> None:
    code, out, err = verb("SELECT nothing FROM actors")
    assert (code, out) == (1, "") and err.startswith("monarch: line 1, column 8: there is no column 'nothing'\nhint: ")
    assert verb("DROP TABLE actors")[0] == 1
    verb.error = TelemetryError("no job runs here", code="no_such_job")
    assert verb("SELECT 1") == (3, "", "monarch: no job runs here\n")
    verb.error = OSError(111, "Connection refused")
    assert verb("SELECT 1") == (1, "", "monarch: [Errno 111] Connection refused\n")


def test_missing_hosts_are_stated_in_exit_code_too(verb: Verb) -> None:
    verb.engine = Engine(job.batches(job.healthy()), missing=LOST, truncated=True)
    sql = "SELECT count(*) AS n FROM actors"
    notes = "monarch: 1 of 2 hosts have answered\n  host3: no answer within \\x1b[31m8 s\n"
    notes += "monarch: the answer is truncated: rows are missing from it\n"
    assert verb(sql, "--format", "csv") == (0, "n\n8\n", notes)
    code, out, err = verb(sql, "--format", "csv", "--all")
    assert (code, out) == (4, "n\n8\n")
    assert err == "monarch: 1 host did not answer\n  host3: no answer within \\x1b[31m8 s\n"


def test_canned_query_by_name(verb: Verb) -> None:
    code, out, err = verb("--run", "first_cause")
    assert code == 0 and "ValueError: bad batch" in out and len(out.splitlines()) == 3
    assert err.startswith("first_cause: The failures that no other failure caused") and "lost_host, slow_link" in err
    assert verb("--run", "lost_host")[2] == "no rows: lost_host finds nothing\n"
    assert json.loads(verb("--run", "first_cause", "--format", "json")[1])[0]["caused"] == 2
    code, out, err = verb("--run", "first_couse")
    assert (code, out) == (1, "") and "the nearest name is 'first_cause'" in err


def test_lists_need_no_job(verb: Verb, tmp_path: Path) -> None:
    folder = tmp_path / ".config" / "monarch" / "queries"
    folder.mkdir(parents=True)
    (folder / "mine.sql").write_text("-- name: mine\n-- what: Of mine.\nSELECT 1\n")
    (folder / "bad.sql").write_text("SELECT 1")
    code, out, err = verb("--list")
    assert code == 0 and f"mine            Of mine. ({folder / 'mine.sql'})" in out.splitlines()
    assert err == f"monarch: {folder / 'bad.sql'} is left out: the header has no line `-- name: ...`\n"
    assert verb("--catalog") == (0, catalog(), "") and verb.given == []
    assert verb("--run", "mine", "--format", "csv")[1] == "Int64(1)\n1\n"


def test_capture_is_not_a_running_job() -> None:
    done = CliRunner().invoke(_cli.query, ["SELECT 1", "--from", "c.zip", "--addr", "http://h"])
    assert done.exit_code == 2 and "--from reads a capture" in done.stderr
    done = CliRunner().invoke(_cli.mcp, ["--from", "c.zip", "--allow-actions"])
    assert done.exit_code == 2 and "a capture has nothing to act on" in done.stderr


def test_capture_answers_as_the_job_did(tmp_path: Path) -> None:
    rows = job.healthy()
    job.first_cause(rows)
    engine = Engine(job.batches(rows))
    path = tmp_path / "job.capture"
    write(path, {name: engine.ask(f"SELECT * FROM {name}") for name in ("failures", "actors")})
    done = CliRunner().invoke(_cli.query, ["--run", "first_cause", "--format", "json", "--from", str(path)], standalone_mode=False)
    assert done.return_value == 0 and [row["rank"] for row in json.loads(done.stdout)] == [3]
    path.write_bytes(b"PK")
    done = CliRunner().invoke(_cli.query, ["SELECT 1", "--from", str(path)], standalone_mode=False)
    assert done.return_value == 1 and str(path) in done.stderr
