"""Tokens and their file, names of the server, and rows of the audit."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from support.asgi_call import send
from support.http_parts import TOKENS, app

from monarch.extension.masking import Masking
from monarch.telemetry._http.audit import Audit, Entry
from monarch.telemetry._http.auth import FILE, Names, Tokens, bearer, new_tokens, publish, read_access, tokens_in
from monarch.telemetry._http.problems import Problem
from monarch.telemetry.errors import TelemetryError


def test_tokens_are_made_once_for_their_user_alone(tmp_path: Path) -> None:
    folder = tmp_path / "jobs" / "one"
    tokens = tokens_in(folder)
    assert tokens == tokens_in(folder)
    assert stat.S_IMODE((folder / FILE).stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert tokens.read != tokens.admin and len(tokens.read) >= 40
    assert tokens != tokens_in(tmp_path / "jobs" / "two")
    assert os.listdir(folder) == [FILE]


def test_new_folders_are_private(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        tokens_in(tmp_path / "home" / "jobs" / "one")
    finally:
        os.umask(before)
    made = [tmp_path / "home", tmp_path / "home" / "jobs", tmp_path / "home" / "jobs" / "one"]
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in made] == [0o700] * 3


def test_published_urls_are_in_the_file(tmp_path: Path) -> None:
    tokens = tokens_in(tmp_path)
    publish(tmp_path, tokens, ["http://127.0.0.1:1"])
    access = read_access(tmp_path / FILE)
    assert access.tokens == tokens and access.urls == ("http://127.0.0.1:1",)
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == [FILE]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"read": 1, "admin": 2, "urls": []}',
        b'{"read": "short", "admin": "x", "urls": []}',
        b"\xff",
        json.dumps({"read": "a" * 43, "admin": "a" * 43, "urls": []}).encode(),
        json.dumps({"read": "a b" * 20, "admin": "c" * 43, "urls": []}).encode(),
    ],
)
def test_file_without_tokens_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / FILE
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(TelemetryError, match=FILE):
        tokens_in(tmp_path)
    assert path.read_bytes() == content


def test_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    tokens_in(tmp_path)
    (tmp_path / FILE).chmod(0o640)
    with pytest.raises(TelemetryError, match="open to others"):
        tokens_in(tmp_path)


def test_link_is_no_token_file(tmp_path: Path) -> None:
    tokens_in(tmp_path / "other")
    (tmp_path / FILE).symlink_to(tmp_path / "other" / FILE)
    with pytest.raises(TelemetryError, match="cannot be read"):
        tokens_in(tmp_path)
    (tmp_path / FILE).unlink()
    (tmp_path / FILE).mkdir()
    with pytest.raises(TelemetryError):
        tokens_in(tmp_path)


def test_folder_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(TelemetryError, match="file"):
        tokens_in(tmp_path / "file")


def test_tokens_are_not_shown() -> None:
    tokens = new_tokens()
    assert tokens.read not in repr(tokens) and tokens.admin not in f"{tokens}"


def test_scope_goes_by_the_token() -> None:
    assert TOKENS.scope(TOKENS.read) == "read"
    assert TOKENS.scope(TOKENS.admin) == "admin"
    for other in ("", "x", TOKENS.read + TOKENS.admin, TOKENS.read.upper(), "ü"):
        assert TOKENS.scope(other) is None
    assert Tokens("a", "a").scope("a") == "admin"


@pytest.mark.parametrize(
    ("header", "token"),
    [
        ("Bearer abc", "abc"),
        ("bearer  abc ", "abc"),
        ("Basic abc", None),
        ("Bearer", None),
        ("Bearer ", None),
        ("abc", None),
        ("", None),
    ],
)
def test_bearer_token_is_parsed(header: str, token: str | None) -> None:
    assert bearer([(b"authorization", header.encode())]) == token


def test_repeated_token_header_is_refused() -> None:
    assert bearer([(b"authorization", b"Bearer a"), (b"authorization", b"Bearer b")]) is None


def test_two_hosts_are_refused() -> None:
    with pytest.raises(Problem):
        Names().check([(b"host", b"localhost"), (b"host", b"localhost")])
    with pytest.raises(Problem):
        Names().check([])
    assert Names(frozenset({"node7"}), "https").check([(b"host", b"Node7:1"), (b"origin", b"https://node7:1")]) == "Node7:1"


def test_each_request_is_a_row_of_the_audit() -> None:
    batches: list[Any] = []

    async def run() -> None:
        application = app(audit=batches.append)
        token, admin = TOKENS.read, TOKENS.admin
        await send(application, "POST", "/v1/query", token=token, body={"sql": f"SELECT '{TOKENS.admin}' AS x"})
        await send(application, "GET", "/v1/root")
        await send(application, "GET", "/v1/root", token="wrong-token-of-no-server-0000000")
        await send(application, "GET", "/v1/root", headers={"host": "evil.example"})
        await send(application, "POST", "/v1/actions/kill_job", token=token, body={"target": "job"})
        await send(application, "POST", "/v1/actions/kill_job", token=admin, body={"target": "job", "reason": "enough"})
        await send(application, "GET", "/api/logs?text=PASSWORD%3Dhunter2hunter2", token=token)
        await send(application, "GET", "/nothing", token=token)
        await send(application, "GET", "/healthz")
        await asyncio.to_thread(application.audit.flush)

    asyncio.run(run())
    rows = [row for batch in batches for row in batch.to_pylist()]
    shown = [(row["who"], row["action"], row["outcome"]) for row in rows]
    assert shown == [
        ("read token", "POST /v1/query", "done"),
        ("no token", "GET request", "refused"),
        ("no token", "GET request", "refused"),
        ("no token", "GET request", "refused"),
        ("read token", "POST /v1/actions/kill_job", "refused"),
        ("admin token", "POST /v1/actions/kill_job", "done"),
        ("read token", "GET /api/logs", "done"),
        ("read token", "GET request", "refused"),
    ]
    assert rows[0]["target"] == "SELECT '***' AS x" and rows[5]["target"] == "job"
    assert rows[0]["detail"].startswith("200 in ") and rows[4]["detail"].startswith("403 ")
    text = json.dumps(rows)
    assert TOKENS.admin not in text and "wrong-token" not in text and "hunter2" not in text
    assert {row["source"] for row in rows} == {"127.0.0.1"}


def test_audit_is_bounded_and_counts_what_it_dropped() -> None:
    batches: list[Any] = []
    audit = Audit(batches.append, Masking(), waiting=3, clock=lambda: 5.0)
    for number in range(5):
        audit.add(Entry("admin token", "admin", "", str(number), "x" * 10_000, "done"))
    audit.flush()
    rows = batches[0].to_pylist()
    assert [row["action"] for row in rows] == ["2", "3", "4", "audit"]
    assert rows[3]["detail"] == "2 rows were dropped" and rows[0]["timestamp_us"] == 5_000_000
    assert len(rows[0]["target"]) < 3_000
    audit.flush()
    assert len(batches) == 1


def test_malformed_character_loses_no_audit_row() -> None:
    batches: list[Any] = []
    audit = Audit(batches.append, Masking())
    for target in ("before", "SELECT '\udcff'", "after"):
        audit.add(Entry("admin token", "admin", "", "query", target, "failed", target))
    audit.flush()
    assert [row["target"] for row in batches[0].to_pylist()] == ["before", "SELECT '?'", "after"]


def test_broken_sink_of_the_audit_costs_no_request(caplog: pytest.LogCaptureFixture) -> None:
    def sink(_: Any) -> None:
        raise OSError("the disk is full")

    async def run() -> list[int]:
        application = app(audit=sink)
        found = [(await send(application, "GET", "/v1/admin", token=TOKENS.read)).status for _ in range(3)]
        await asyncio.to_thread(application.audit.flush)
        return found

    assert asyncio.run(run()) == [200] * 3
    assert caplog.text.count("the disk is full") == 1
