"""Every route of the OpenAPI document: its access checks, its form, and what it answers where parts are missing."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.asgi_call import Response, call, send
from support.http_parts import DIAGNOSIS, TOKENS, app, parts
from support.made_up_job import FAILURE, PROCS, TRAINER, TRAINERS

from monarch.telemetry._http import openapi
from monarch.telemetry._http.app import HANDLERS, App
from monarch.telemetry._http.auth import Names
from monarch.telemetry._http.references import Reference
from monarch.telemetry._http.routes import ARROW, JSON, ROUTES, Route
from monarch.telemetry._http.schema import checked
from monarch.telemetry._tables.snapshots import SNAPSHOTS

DOCUMENT: dict[str, Any] = json.loads(openapi.stored())
OPERATIONS = [(method.upper(), path, one) for path, methods in DOCUMENT["paths"].items() for method, one in methods.items()]
PROC = str(Reference("proc", PROCS[0]))
BODIES: dict[str, Any] = {
    "query": {"sql": "SELECT 1 AS one"},
    "api_query": {"sql": "SELECT 1 AS one"},
    "pyspy_profile_svg": {"duration_s": 1},
    "api_pyspy_capture": {"proc_ref": PROC},
    "api_pyspy_dump": {"dump_id": "d2", "proc_ref": PROC, "pyspy_result_json": '{"Ok": {"pid": 1, "binary": "x", "stack_traces": []}}'},
    "action_stop_mesh": {"target": "trainer", "reason": "test"},
    "action_kill_proc": {"target": PROC},
    "action_signal_proc": {"target": PROC, "signal": "SIGTERM"},
    "action_set_log_level": {"target": "*", "level": "debug"},
    "action_dump_state": {"target": "*"},
}
# The request runs until its client disconnects.
ENDLESS = {"events"}


def snapshot_body() -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SNAPSHOTS.schema()) as writer:
        writer.write_batch(pa.record_batch([[1], [2]], schema=SNAPSHOTS.schema()))
    return sink.getvalue().to_pybytes()


def request(route: Route) -> tuple[str, Any]:
    """A URL and body that a route takes."""
    values = {"{proc}": PROC, "{reference}": PROC, "{table}": "snapshots"}
    values["{id}"] = str(TRAINERS if "meshes" in route.path else TRAINER[0])
    url = route.path
    for name, value in values.items():
        url = url.replace(name, value)
    if route.method == "GET":
        return url, None
    if route.body == ARROW:
        return url, snapshot_body()
    return url, BODIES.get(route.operation, {"target": "job"})


def all_of(make: Any, **more: Any) -> Iterator[tuple[Route, Response]]:
    """The answers of one application to each route."""

    async def run() -> list[tuple[Route, Response]]:
        application = make()
        found: list[tuple[Route, Response]] = []
        for route in ROUTES:
            url, body = request(route)
            if route.operation not in ENDLESS or more.get("token") is None or "headers" in more:
                found.append((route, await send(application, route.method, url, body=body, **more)))
        return found

    yield from asyncio.run(run())


def test_document_is_that_of_the_table() -> None:
    # A process of its own: the order of the types of a union is that of an equal one which was used first.
    made = subprocess.run([sys.executable, "-m", "monarch.telemetry._http.openapi"], capture_output=True, text=True, check=True).stdout
    assert openapi.stored().decode() == made, "run `python -m monarch.telemetry._http.openapi > openapi.json`"


def test_document_has_every_route_with_a_handler() -> None:
    assert {(method, path) for method, path, _ in OPERATIONS} == {(route.method, route.path) for route in ROUTES}
    operations = [route.operation for route in ROUTES]
    assert len(set(operations)) == len(operations)
    assert set(operations) == set(HANDLERS) | ENDLESS


def test_references_of_the_document_lead_somewhere() -> None:
    def refs(value: Any) -> Iterator[str]:
        if isinstance(value, dict):
            if isinstance(value.get("$ref"), str):
                yield value["$ref"]
            for one in value.values():
                yield from refs(one)
        elif isinstance(value, list):
            for one in value:
                yield from refs(one)

    for reference in set(refs(DOCUMENT)):
        at: Any = DOCUMENT
        for part in reference.removeprefix("#/").split("/"):
            at = at[part]
        assert at, reference


def test_only_healthz_answers_without_a_token() -> None:
    for route, answer in all_of(app):
        assert answer.status == (200 if route.path == "/healthz" else 401), route
        if answer.status == 401:
            assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("token", ["wrong-token-of-no-server-0000000", TOKENS.read[:-1], f"{TOKENS.admin}x", "tøken"])
def test_wrong_token_is_refused_and_not_echoed(token: str) -> None:
    for route, answer in all_of(app, token=token):
        assert answer.status == (200 if route.path == "/healthz" else 401), route
        assert token not in answer.text
        assert TOKENS.read not in answer.text and TOKENS.admin not in answer.text


def test_read_token_is_refused_on_admin_routes() -> None:
    refused = {route.operation for route, answer in all_of(app, token=TOKENS.read) if answer.status == 403}
    assert refused == {one["operationId"] for _, _, one in OPERATIONS if one["x-scope"] == "admin"}
    assert {"action_kill_job", "pyspy_profile_svg", "api_ingest_snapshot", "api_pyspy_dump"} <= refused


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "evil.example:1729"},
        {"host": "127.0.0.1.evil.example"},
        {"host": "127.0.0.1:1729@evil.example"},
        {"host": "[::1]evil.example"},
        {"host": "localhost:1729:1729"},
        {"host": ""},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9999"},
        {"origin": "https://127.0.0.1:1729"},
        {"origin": "http://127.0.0.1:1729/"},
    ],
)
def test_foreign_host_or_origin_is_refused(headers: dict[str, str]) -> None:
    for route, answer in all_of(app, token=TOKENS.admin, headers=headers):
        assert answer.status == 403, route
        assert TOKENS.admin not in answer.text


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://127.0.0.1:1729"},
        {"host": "LOCALHOST:1729", "origin": "http://localhost:1729"},
        {"host": "[::1]:1729", "origin": "http://[::1]:1729"},
        {"host": "localhost"},
        {"host": "localhost:8000"},
    ],
)
def test_own_names_are_taken(headers: dict[str, str]) -> None:
    assert call(app, "GET", "/v1/admin", token=TOKENS.read, headers=headers).status == 200


def test_each_route_answers_in_its_form() -> None:
    for route, answer in all_of(app, token=TOKENS.admin):
        assert answer.status == 200, (route, answer.text)
        if route.media == (JSON,):
            checked(answer.json, route.answer, route.operation)
        elif route.operation != "query":
            assert answer.headers["content-type"].partition(";")[0] in route.media, route


def test_answers_have_headers_that_browsers_keep_to() -> None:
    for _, answer in all_of(app, token=TOKENS.admin):
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert "set-cookie" not in answer.headers
        assert not any(name.startswith("access-control") for name in answer.headers)


def test_missing_parts_are_named() -> None:
    def make() -> App:
        return app(actions=None, stacks=None, settings=None, metrics=None, ingest=None)

    missing = {route.operation: answer for route, answer in all_of(make, token=TOKENS.admin) if answer.status != 200}
    assert {answer.status for answer in missing.values()} == {503}
    assert "settings" in missing["config"].json["error"]["message"]
    assert missing["stacks"].json["error"]["code"] == "service_unavailable"
    assert missing["api_pyspy_capture"].json == {"error": "this process does not offer stacks"}
    assert {"metrics", "api_ingest_snapshot", "action_heal_job", "pyspy_profile_svg"} <= set(missing)


@pytest.mark.parametrize(
    ("method", "url", "status"),
    [
        ("DELETE", "/v1/root", 405),
        ("OPTIONS", "/v1/query", 405),
        ("GET", "/v1/query", 404),  # a reference that is not valid
        ("GET", "/api/nothing", 404),
        ("GET", "/v1/actions/explode", 404),
        ("POST", "/v1/actions/explode", 404),
        ("GET", "/v1/../etc/passwd", 404),
        ("GET", "/", 404),
        ("GET", "/v1/root/", 404),
    ],
)
def test_other_paths_and_methods_are_errors(method: str, url: str, status: int) -> None:
    assert call(app, method, url).status == 401
    answer = call(app, method, url, token=TOKENS.read)
    assert answer.status == status
    assert answer.json["error"]


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("/api/logs?nothing=1", "no parameter 'nothing'"),
        ("/api/logs?limit=1&limit=2", "twice"),
        ("/api/logs?limit=0", "limit is from 1"),
        ("/api/logs?limit=-1", "limit is a whole number"),
        ("/api/logs?limit=1_0", "limit is a whole number"),
        ("/api/logs?limit=10001", "limit is from 1"),
        ("/api/logs?since_us=99999999999999999999", "64 bits"),
        ("/api/logs?stream=other", "stream is one of stdout, stderr, logging, system"),
        ("/api/logs?cursor=AAAA", "no cursor of this list"),
        ("/api/logs?cursor=W10", "no cursor of this list"),
        ("/api/dag?hide_system=perhaps", "true or false"),
        ("/api/message-activity?buckets=100000", "buckets is from 1"),
        ("/v1/root?x=1", "there are none"),
    ],
)
def test_wrong_parameter_is_named(url: str, text: str) -> None:
    answer = call(app, "GET", url, token=TOKENS.read)
    assert answer.status == 400
    assert text in answer.text


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "no JSON"),
        (b"{", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b'{"sql": NaN}', "no JSON"),
        (b"\xff\xfe", "no JSON"),
        (b"[]", "the body is a JSON object"),
        ({}, "needs the field 'sql'"),
        ({"sql": 1}, "sql is a text"),
        ({"sql": "SELECT 1", "other": 1}, "no field 'other'"),
        ({"sql": "SELECT 1", "timeout_s": "soon"}, "timeout_s is a number"),
        ({"sql": "SELECT 1", "timeout_s": True}, "timeout_s is a number"),
        ({"sql": "SELECT 1", "timeout_s": 0}, "greater than 0"),
        ({"sql": "SELECT 1", "timeout_s": 1e9}, "at most 600"),
        (b'{"sql": "SELECT 1", "timeout_s": 1e999}', "finite"),
        ({"sql": "SELECT 1", "require_all": 1}, "true or false"),
        ({"sql": "SELECT 1", "page_rows": 0}, "page_rows"),
    ],
)
def test_wrong_body_is_named(body: Any, text: str) -> None:
    answer = call(app, "POST", "/v1/query", token=TOKENS.admin, body=body)
    assert (answer.status, answer.json["error"]["code"]) == (400, "bad_request")
    assert text in answer.json["error"]["message"]


def test_large_bodies_are_refused_by_their_route() -> None:
    megabyte = b" " * ((1 << 20) + 1)
    assert call(app, "POST", "/v1/query", token=TOKENS.read, body=megabyte).status == 413
    assert call(app, "POST", "/v1/query", token=TOKENS.read, body=megabyte, headers={"content-length": str(1 << 40)}).status == 413
    # The limit of snapshots is a different one, and this is not Arrow.
    assert call(app, "POST", "/api/ingest_snapshot/nodes", token=TOKENS.admin, body=megabyte).status == 400
    assert call(app, "POST", "/v1/query", body=megabyte).status == 401


def test_slow_body_ends_with_its_time() -> None:
    class Slow(App):
        def __init__(self) -> None:
            super().__init__(parts(), TOKENS, Names(), body_seconds=0.01)

    async def run() -> int:
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/query",
            "query_string": b"",
            "headers": [(b"host", b"localhost"), (b"authorization", f"Bearer {TOKENS.read}".encode())],
        }
        answers: list[Any] = []

        async def receive() -> Any:
            await asyncio.Event().wait()

        async def take(message: Any) -> None:
            answers.append(message)

        await Slow()(scope, receive, take)
        assert (b"connection", b"close") in answers[0]["headers"]
        return answers[0]["status"]

    assert asyncio.run(run()) == 408


def test_internal_error_shows_no_internals(caplog: pytest.LogCaptureFixture) -> None:
    def metrics(accept: str) -> Any:
        raise ZeroDivisionError(f"secret of the inside {TOKENS.admin}")

    answer = call(lambda: app(metrics=metrics), "GET", "/metrics", token=TOKENS.read)
    assert (answer.status, answer.json["error"]["code"]) == (500, "internal_error")
    assert "secret" not in answer.text and "ZeroDivision" not in answer.text
    number = answer.json["error"]["message"].rpartition(" ")[2]
    assert number in caplog.text and "ZeroDivisionError" in caplog.text


def test_metrics_come_in_the_format_that_is_accepted() -> None:
    accepted: list[str] = []

    def metrics(accept: str) -> Any:
        accepted.append(accept)
        return "text/plain", b""

    for headers in ({}, {"accept": "application/openmetrics-text"}):
        assert call(lambda: app(metrics=metrics), "GET", "/metrics", token=TOKENS.read, headers=headers).status == 200
    assert accepted == ["", "application/openmetrics-text"]


def test_slow_handler_is_a_gateway_timeout() -> None:
    release = threading.Event()
    short = [route._replace(seconds=0.05) for route in ROUTES if route.operation == "metrics"]

    def metrics(accept: str) -> Any:
        release.wait(20)
        return "text/plain", b""

    try:
        answer = call(lambda: App(parts(metrics=metrics), TOKENS, Names(), routes=short), "GET", "/metrics", token=TOKENS.read)
    finally:
        release.set()
    assert (answer.status, answer.json["error"]["code"]) == (504, "gateway_timeout")
    assert "0.05 s" in answer.json["error"]["message"]


def test_secrets_of_settings_are_masked() -> None:
    answer = call(app, "GET", f"/v1/config/{PROC}", token=TOKENS.read)
    assert "hunter2" not in answer.text
    assert {entry["name"]: entry["value"] for entry in answer.json["entries"]} == {"queue_limit": 5, "hub_token": "***"}


def test_guide_and_admin_have_the_clients_url() -> None:
    headers = {"host": "localhost:9000"}
    assert "http://localhost:9000/v1/query" in call(app, "GET", "/SKILL.md", token=TOKENS.read, headers=headers).text
    assert call(app, "GET", "/v1/admin", token=TOKENS.read, headers=headers).json == {
        "actor_id": "1",
        "proc_id": "2",
        "host": "host0",
        "url": "http://localhost:9000",
    }


def test_statements_of_the_guide_run() -> None:
    text = call(app, "GET", "/SKILL.md", token=TOKENS.read).text
    statements = [part for part in text.split("`") if part.startswith(("SELECT", "SHOW"))]
    assert len(statements) >= 5
    for sql in statements:
        answer = call(app, "POST", "/v1/query", token=TOKENS.read, body={"sql": sql})
        assert answer.status == 200, (sql, answer.text)
    first = call(app, "POST", "/v1/query", token=TOKENS.read, body={"sql": "SELECT id FROM failures WHERE first_cause"})
    assert first.json["rows"] == [{"id": FAILURE}]


def test_actions_get_what_the_body_has() -> None:
    application = parts()
    actions: Any = application.actions

    async def run() -> list[int]:
        made = App(application, TOKENS, Names())
        found: list[int] = []
        for name, body in {
            "stop_mesh": {"target": "trainer", "reason": "enough"},
            "kill_proc": {"target": PROC},
            "signal_proc": {"target": PROC, "signal": "term"},
            "set_log_level": {"target": PROC, "level": "DEBUG"},
            "cancel_query": {"target": "q1"},
            # Refused, and not called:
            "heal_job": {"target": "job", "reason": "x"},
            "dump_state": {},
            "kill_job": {"target": 1},
        }.items():
            found.append((await send(made, "POST", f"/v1/actions/{name}", token=TOKENS.admin, body=body)).status)
        found.append(
            (await send(made, "POST", "/v1/actions/signal_proc", token=TOKENS.admin, body={"target": PROC, "signal": "NOPE"})).status
        )
        found.append((await send(made, "POST", "/v1/actions/kill_proc", token=TOKENS.admin, body={"target": "trainer"})).status)
        return found

    assert asyncio.run(run()) == [200] * 5 + [400] * 4 + [404]
    assert actions.calls == [
        ("stop_mesh", ("trainer",), {"reason": "enough"}),
        ("kill_proc", (PROCS[0],), {}),
        ("signal_proc", (PROCS[0], 15), {}),
        ("set_log_level", (PROCS[0], "debug"), {}),
        ("cancel_query", ("q1",), {}),
    ]


def test_diagnosis_is_made_when_asked() -> None:
    asked: list[float] = []

    def diagnosis(seconds: float) -> Any:
        asked.append(seconds)
        return DIAGNOSIS

    make = lambda: app(diagnosis=diagnosis)  # noqa: E731
    assert call(make, "GET", "/v1/stacks", token=TOKENS.read).status == 200
    assert not asked
    answer = call(make, "GET", "/v1/diagnose", token=TOKENS.read)
    assert len(asked) == 1 and 0 < asked[0] <= 30
    assert answer.json["text"].startswith("nothing is wrong\nhealthy: 1 of 1 procs")
    assert answer.json["missing"] == ["a server with ***"]
    assert call(lambda: app(diagnosis=None), "GET", "/v1/diagnose", token=TOKENS.read).status == 503


def test_stacks_with_locals_need_admin() -> None:
    assert call(app, "GET", "/v1/stacks?mesh=trainer", token=TOKENS.read).json["mesh"] == "trainer"
    assert call(app, "GET", "/v1/stacks?locals=true", token=TOKENS.read).status == 403
    assert call(app, "GET", "/v1/stacks?locals=true", token=TOKENS.admin).json["locals"] is True


def test_dump_from_elsewhere_is_checked() -> None:
    stacks: Any = parts().stacks
    frame = {"name": "f", "filename": "a.py", "module": None, "short_filename": None, "line": 3}
    thread = {"pid": 1, "thread_id": 1, "thread_name": None, "os_thread_id": None, "active": True, "owns_gil": False, "frames": [frame]}
    good = {"Ok": {"pid": 1, "binary": "py-spy", "stack_traces": [thread], "warnings": []}}

    def post(answer: Any, dump_id: str = "d9") -> int:
        body = {"dump_id": dump_id, "proc_ref": PROC, "pyspy_result_json": answer if isinstance(answer, str) else json.dumps(answer)}
        return call(lambda: app(stacks=stacks), "POST", "/api/pyspy_dump", token=TOKENS.admin, body=body).status

    assert post(good) == 200
    ((name, reference, kept),) = stacks.kept
    assert (name, reference, kept.pid, kept.stack_traces[0].frames[0].line) == ("d9", PROC, 1, 3)
    assert post("{") == 400
    assert post({"Ok": {"pid": "1"}}) == 400
    assert post({"Other": {}}) == 400
    assert post({"BinaryNotFound": {"searched": ["PATH"]}}) == 400
    assert post("[" * 100_000) == 400
    assert post(good, "../../etc") == 400
    assert len(stacks.kept) == 1


def test_snapshots_are_checked_before_they_are_stored() -> None:
    stored: list[Any] = []

    def post(table: str, data: bytes) -> Response:
        make = lambda: app(ingest=lambda name, batches: stored.append((name, batches)))  # noqa: E731
        return call(make, "POST", f"/api/ingest_snapshot/{table}", token=TOKENS.admin, body=data)

    good = snapshot_body()
    assert post("snapshots", good).json == {"rows": 1}
    name, batches = stored.pop()
    assert name == "snapshots" and batches[0].to_pylist() == [{"snapshot_id": 1, "snapshot_ts": 2}]
    assert post("nodes", good).status == 400
    assert post("logs", good).status == 404
    assert post("snapshots", good[:-30] + b"\xff" * 30).status in (200, 400)
    for cut in range(0, len(good), 37):
        assert post("snapshots", good[:cut]).status in (200, 400)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SNAPSHOTS.schema()) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays([pa.array([None], pa.uint64()), pa.array([2])], schema=SNAPSHOTS.schema()))
    answer = post("snapshots", sink.getvalue().to_pybytes())
    assert answer.status == 400 and "snapshot_id" in answer.text


def test_dashboard_that_is_not_built_names_the_commands(tmp_path: Path) -> None:
    from monarch.telemetry._dashboard.files import BUILD, Files

    files = Files(tmp_path)

    def make() -> App:
        return app(files=files.get)

    page = call(make, "GET", "/logs/live")
    assert page.status == 503 and page.headers["content-type"].startswith("text/html") and BUILD[0].encode() in page.body
    assert call(make, "GET", "/", headers={"if-none-match": page.headers["etag"]}).status == 503
    assert call(make, "GET", "/assets/a.js").status == 404


def test_files_of_the_dashboard_need_no_token(tmp_path: Path) -> None:
    from monarch.telemetry._dashboard.files import Files

    (tmp_path / "assets").mkdir()
    (tmp_path / "index.html").write_bytes(b"<html>")
    (tmp_path / "assets" / "a.js").write_bytes(b"1")
    files = Files(tmp_path)

    def make() -> App:
        return app(files=files.get)

    assert call(make, "GET", "/").body == b"<html>"
    page = call(make, "GET", "/logs/live")
    assert (page.body, page.headers["cache-control"]) == (b"<html>", "no-cache")
    script = call(make, "GET", "/assets/a.js")
    assert script.headers["content-type"].startswith("text/javascript") and "immutable" in script.headers["cache-control"]
    again = call(make, "GET", "/assets/a.js", headers={"if-none-match": script.headers["etag"]})
    assert (again.status, again.body) == (304, b"")
    assert call(make, "GET", "/assets/b.js").status == 404
    assert call(make, "GET", "/", headers={"host": "evil.example"}).status == 403
    for path in ("/v1/root", "/api/nothing", "/metrics", "/v1", "/api", "/v1/nothing/at/all"):
        assert call(make, "GET", path).status == 401, path
    assert call(make, "GET", "/api/nothing", token=TOKENS.read).status == 404
    assert call(make, "POST", "/").status == 401
