"""The client of the HTTP API: pages, errors, tokens by URL, and servers that are none or silent."""

from __future__ import annotations

import json
import shutil
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from support.http_parts import TOKENS, parts
from support.http_server import make, served
from support.made_up_job import TRAINER

from monarch.telemetry._http.app import App
from monarch.telemetry._http.auth import FILE, publish, read_access, tokens_in
from monarch.telemetry._http.client import QueryEngineClient
from monarch.telemetry._http.serve import serve
from monarch.telemetry.errors import QueryError, QueryLimit, QueryRejected, QueryTimeout, TelemetryError

VARIABLE = "MONARCH_TELEMETRY_TOKEN"


def test_serving_publishes_its_token_and_takes_it_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONARCH_HOME", str(tmp_path))
    monkeypatch.delenv(VARIABLE, raising=False)
    folder = tmp_path / "jobs" / "one"
    serving = serve(parts(), folder, [("127.0.0.1", 0), ("127.0.0.1", 0)])
    try:
        assert read_access(folder / FILE).urls == serving.urls and len(serving.urls) == 2
        assert QueryEngineClient(serving.urls[1]).query("SELECT 1 AS x")["rows"] == [{"x": 1}]
        assert serving.dashboard_url(1) == f"{serving.urls[1]}/#{serving.tokens.admin}"
    finally:
        serving.stop()
    assert read_access(folder / FILE) == (serving.tokens, ())
    again = serve(parts(), folder, [("127.0.0.1", 0)])
    shutil.rmtree(folder)
    again.stop()
    assert again.tokens == serving.tokens


def test_client_gets_all_pages() -> None:
    with served() as url:
        client = QueryEngineClient(url, token=TOKENS.read)
        found = client.query(f"SELECT id FROM actors WHERE id = {TRAINER[0]}")
        assert found["rows"] == [{"id": TRAINER[0]}] and found["coverage"]["hosts_answered"] == 1
        many = client.query("SELECT a.seq FROM logs a, logs b, logs c LIMIT 25000")
        assert len(many["rows"]) == 25_000


def test_timeout_of_the_client_limits_its_queries() -> None:
    with served() as url:
        # Far below the time of a query, which would answer within the default.
        client = QueryEngineClient(url, timeout=1e-6, token=TOKENS.read)
        for _ in range(5):
            with pytest.raises(QueryTimeout) as error:
                client.query("SELECT count(*) AS n FROM logs a, logs b")
            assert error.value.stage == "server"
        assert client.query("SELECT 1 AS x", timeout=10)["rows"] == [{"x": 1}]


def test_client_ignores_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with served() as url:
        assert QueryEngineClient(url, token=TOKENS.read).query("SELECT 1 AS x")["rows"] == [{"x": 1}]


def test_client_raises_the_errors_of_the_engine() -> None:
    with served() as url:
        client = QueryEngineClient(url, token=TOKENS.read)
        with pytest.raises(QueryRejected, match="read-only"):
            client.query("DROP TABLE actors")
        with pytest.raises(QueryError, match="did you mean 'actors'"):
            client.query("SELECT * FROM actor")
        with pytest.raises(QueryLimit) as limit:
            client.query("SELECT 1 FROM logs a, logs b, logs c, logs d")
        assert (limit.value.limit, limit.value.value) == ("rows", 100_000)
        with pytest.raises(TelemetryError, match="403"):
            client.query("SELECT 1", timeout=100)
        with pytest.raises(TelemetryError, match="401") as refused:
            QueryEngineClient(url, token="wrong-token-of-no-server").query("SELECT 1")
        assert "wrong-token" not in str(refused.value)


def test_client_stores_a_dump() -> None:
    stacks: Any = parts().stacks
    with served(make(stacks=stacks)) as url:
        answer = json.dumps({"Ok": {"pid": 5, "binary": "py-spy", "stack_traces": []}})
        assert QueryEngineClient(url, token=TOKENS.admin).store_pyspy_dump("d5", "ref", answer) == {"dump_id": "d5"}
        with pytest.raises(TelemetryError, match="admin"):
            QueryEngineClient(url, token=TOKENS.read).store_pyspy_dump("d5", "ref", answer)
    assert stacks.kept[0][0] == "d5"


def test_client_finds_the_token_of_its_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONARCH_HOME", str(tmp_path))
    monkeypatch.delenv(VARIABLE, raising=False)
    mine, other = tmp_path / "jobs" / "b", tmp_path / "jobs" / "a"
    tokens = tokens_in(mine)
    publish(other, tokens_in(other), ["http://127.0.0.1:1"])
    with served(lambda names: App(parts(), tokens, names)) as url:
        with pytest.raises(TelemetryError, match="401"):
            QueryEngineClient(url).query("SELECT 1")
        publish(mine, tokens, [url])
        assert QueryEngineClient(url).query("SELECT 1 AS x")["rows"] == [{"x": 1}]
        assert QueryEngineClient(url.replace("127.0.0.1", "localhost")).query("SELECT 1 AS x")["rows"] == [{"x": 1}]
        (mine / "telemetry.json").chmod(0o644)
        with pytest.raises(TelemetryError, match="401"):
            QueryEngineClient(url).query("SELECT 1")
        monkeypatch.setenv(VARIABLE, tokens.read)
        assert QueryEngineClient(url).query("SELECT 1 AS x")["rows"] == [{"x": 1}]


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:1729",
        "ftp://localhost",
        "http://",
        "http://user:secret@localhost:1",
        "http://localhost/#x",
        "http://h:x",
        5,
        None,
        b"h",
    ],
)
def test_client_refuses_what_is_no_url(url: Any) -> None:
    with pytest.raises(ValueError) as refused:
        QueryEngineClient(url, token="x")
    assert "secret" not in str(refused.value)


def test_client_names_an_unreachable_server() -> None:
    with served() as url:
        pass
    with pytest.raises(TelemetryError, match=url):
        QueryEngineClient(url, token=TOKENS.read).query("SELECT 1")


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 502 Bad\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: http://192.0.2.1/\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 400 Bad\r\nContent-Length: 2\r\n\r\n[]",
        b"SSH-2.0-x\r\n",
        b"",
    ],
)
def test_client_of_another_server_has_an_error(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def serve() -> None:
            one, _ = listener.accept()
            with one:
                one.recv(65_536)
                one.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(TelemetryError):
            QueryEngineClient(f"http://127.0.0.1:{port}", token="x").query("SELECT 1")
        thread.join()


def test_client_does_not_wait_for_a_silent_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = QueryEngineClient(f"http://127.0.0.1:{listener.getsockname()[1]}", timeout=0.05, token="x")
        with pytest.raises(QueryTimeout, match="did not answer"):
            client.query("SELECT 1")
