"""Statements over HTTP: pages, limits, Arrow streams, errors, and rows as JSON."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pyarrow as pa
import pytest
from support.asgi_call import Response, call, send
from support.http_parts import TOKENS, app, engine
from support.made_up_job import FAILURE, TRAINER

from monarch.telemetry._asking import Answer
from monarch.telemetry._http import query
from monarch.telemetry._http.cursors import KEPT_BYTES, KEPT_CURSORS, KEPT_SECONDS, Cursors
from monarch.telemetry._http.json_rows import rows
from monarch.telemetry._http.problems import Problem
from monarch.telemetry._http.routes import ARROW
from monarch.telemetry._sql.coverage import Coverage, Missing
from monarch.telemetry._sql.limits import DEFAULT, Limits
from monarch.telemetry.errors import PartialAnswer, QueryTimeout, TelemetryError

NUMBERS = "SELECT seq FROM logs ORDER BY seq"


def post(body: Any, *, token: str = TOKENS.read, path: str = "/v1/query", **more: Any) -> Response:
    return call(lambda: app(**more), "POST", path, token=token, body=body)


class Recorded:
    """An engine that records the limits, and answers a table or raises."""

    def __init__(self, answer: Any = None) -> None:
        self.answer = answer if answer is not None else pa.table({"x": [1]})
        self.asked: list[tuple[str, float | None, bool, Limits]] = []

    def ask(self, sql: str, *, timeout: float | None = None, require_all: bool = False, limits: Limits = DEFAULT) -> Answer:
        self.asked.append((sql, timeout, require_all, limits))
        if isinstance(self.answer, Exception):
            raise self.answer
        return Answer(self.answer, Coverage(2, 1, (Missing("host1", "silent"),)))


def test_rows_come_with_their_coverage() -> None:
    answer = post({"sql": f"SELECT id FROM actors WHERE id = {TRAINER[0]}"}).json
    assert answer["rows"] == [{"id": TRAINER[0]}]
    assert set(answer) == {"rows", "coverage"}
    assert answer["coverage"]["hosts_asked"] == 1 and answer["coverage"]["missing"] == []


def test_dashboard_has_ids_as_texts() -> None:
    sql = f"SELECT id, mesh_id, rank, id AS actor FROM actors WHERE id = {TRAINER[0]}"
    row = post({"sql": sql}, path="/api/query").json["rows"][0]
    assert row["id"] == str(TRAINER[0]) and isinstance(row["mesh_id"], str)
    assert row["rank"] == 0 and row["actor"] == TRAINER[0]


def test_pages_together_are_the_answer() -> None:
    async def run() -> list[int]:
        application = app()
        found: list[int] = []
        body: dict[str, Any] = {"sql": NUMBERS, "page_rows": 7}
        while True:
            answer = (await send(application, "POST", "/v1/query", token=TOKENS.read, body=body)).json
            found += [row["seq"] for row in answer["rows"]]
            if "cursor" not in answer:
                return found
            assert len(answer["rows"]) == 7
            body["cursor"] = answer["cursor"]

    assert asyncio.run(run()) == list(range(40))


def test_cursor_is_bound_to_its_statement_and_token() -> None:
    async def run() -> tuple[list[int], str]:
        application = app()

        async def ask(token: str = TOKENS.read, **body: Any) -> Response:
            return await send(application, "POST", "/v1/query", token=token, body={"sql": NUMBERS, "page_rows": 7, **body})

        cursor = (await ask()).json["cursor"]
        found = [
            (await ask(cursor=cursor)).status,
            # A client that did not get the page asks again.
            (await ask(cursor=cursor)).status,
            (await ask(cursor=cursor, sql="SELECT 1")).status,
            (await ask(cursor=cursor, token=TOKENS.admin)).status,
            (await ask(cursor="other")).status,
        ]
        return found, (await ask(cursor=cursor)).json["rows"][0]["seq"]

    assert asyncio.run(run()) == ([200, 200, 400, 400, 400], 7)


def test_cursors_are_bounded_in_time_number_and_bytes() -> None:
    now = [0.0]
    cursors = Cursors(lambda: now[0])
    table = pa.table({"x": list(range(1000))})
    first = cursors.keep("q", "read", table, Coverage(1, 1), 5)
    assert first is not None
    now[0] += KEPT_SECONDS - 1
    assert cursors.take(first, "q", "read").at == 5
    now[0] += KEPT_SECONDS - 1
    assert cursors.take(first, "q", "read").at == 5
    now[0] += KEPT_SECONDS
    with pytest.raises(Problem, match="time is over"):
        cursors.take(first, "q", "read")
    made = [cursors.keep("q", "read", table, Coverage(1, 1), at) for at in range(KEPT_CURSORS + 1)]
    with pytest.raises(Problem):
        cursors.take(str(made[0]), "q", "read")
    assert cursors.take(str(made[1]), "q", "read").at == 1
    large = pa.table({"x": pa.nulls(1, pa.binary(KEPT_BYTES // 2 + 1))})
    one = cursors.keep("q", "read", large, Coverage(1, 1), 0)
    assert one is not None
    two = cursors.keep("q", "read", pa.table({"x": pa.nulls(1, pa.binary(KEPT_BYTES // 2 + 1))}), Coverage(1, 1), 0)
    with pytest.raises(Problem):
        cursors.take(one, "q", "read")
    assert two is not None and cursors.take(two, "q", "read")
    assert cursors.keep("q", "read", pa.table({"x": pa.nulls(1, pa.binary(KEPT_BYTES + 1))}), Coverage(1, 1), 0) is None


def test_wide_rows_make_short_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query, "PAGE_BYTES", 100)
    answer = post({"sql": "SELECT line FROM logs"}).json
    assert 1 <= len(answer["rows"]) < 10 and answer["cursor"]


def test_arrow_stream_has_rows_and_coverage() -> None:
    headers = {"accept": ARROW}
    answer = call(app, "POST", "/v1/query", token=TOKENS.read, headers=headers, body={"sql": "SELECT id, line FROM logs, actors"})
    assert answer.headers["content-type"] == ARROW
    table = pa.ipc.open_stream(answer.body).read_all()
    assert table.num_rows == 240 and table.schema.names == ["id", "line"]
    found = Coverage.of(table)
    assert found is not None and found.hosts_answered == 1


def test_large_arrow_stream_comes_in_batches() -> None:
    large = Recorded(pa.table({"x": list(range(100_000))}))
    answer = call(lambda: app(engine=large), "POST", "/v1/query", token=TOKENS.read, headers={"accept": ARROW}, body={"sql": "x"})
    reader = pa.ipc.open_stream(answer.body)
    sizes = [batch.num_rows for batch in reader]
    assert sum(sizes) == 100_000 and len(sizes) > 5


@pytest.mark.parametrize(
    ("sql", "text"),
    [
        ("DROP TABLE actors", "read-only"),
        ("SELECT * FROM actor", "did you mean 'actors'"),
        ("SELECT nam FROM hosts", "did you mean 'name'"),
        ("SELECT 1\nFROM )", "line 2"),
        ("SELECT 1; SELECT 2", "several statements"),
        ("SELECT * FROM '/etc/passwd'", "a file as a table"),
    ],
)
def test_wrong_statement_is_a_bad_request(sql: str, text: str) -> None:
    answer = post({"sql": sql})
    assert (answer.status, answer.json["error"]["code"]) == (400, "bad_request")
    assert text in answer.json["error"]["message"]
    dashboard = post({"sql": sql}, path="/api/query")
    assert dashboard.status == 400 and text in dashboard.json["error"]


def test_limit_is_named_with_its_number() -> None:
    answer = post({"sql": NUMBERS, "max_rows": 10})
    assert answer.status == 400
    assert answer.json["error"]["details"] == {"error": "telemetry_limit", "limit": "rows", "value": 10, "reached": 40}


@pytest.mark.parametrize(("field", "value"), [("timeout_s", 11), ("max_rows", 100_001), ("max_bytes", (64 << 20) + 1)])
def test_larger_limits_need_admin(field: str, value: int) -> None:
    asked = Recorded()
    body = {"sql": "x", field: value}
    assert post(body, engine=asked).status == 403
    assert asked.asked == []
    assert post(body, token=TOKENS.admin, engine=asked).status == 200
    limits = asked.asked[0][3]
    assert {"timeout_s": limits.seconds, "max_rows": limits.rows, "max_bytes": limits.bytes}[field] == value


def test_smaller_limits_and_require_all_reach_the_engine() -> None:
    asked = Recorded()
    assert post({"sql": "x", "timeout_s": 2, "max_rows": 3, "max_bytes": 400, "require_all": True}, engine=asked).status == 200
    sql, timeout, require_all, limits = asked.asked[0]
    assert (sql, require_all, limits.seconds, limits.rows, limits.bytes) == ("x", True, 2.0, 3, 400)
    assert timeout is not None and timeout <= 2


@pytest.mark.parametrize(
    ("error", "status", "code", "details"),
    [
        (QueryTimeout("late", stage="hosts", missing=["host1"]), 504, "gateway_timeout", {"stage": "hosts", "missing": ["host1"]}),
        (PartialAnswer({"host1": "silent"}), 503, "service_unavailable", {"missing": [{"host": "host1", "reason": "silent"}]}),
        (TelemetryError("telemetry is off"), 503, "service_unavailable", {}),
    ],
)
def test_errors_of_the_engine_have_their_code(error: Exception, status: int, code: str, details: dict[str, Any]) -> None:
    answer = post({"sql": "x"}, engine=Recorded(error))
    assert (answer.status, answer.json["error"]["code"]) == (status, code)
    assert details.items() <= answer.json["error"]["details"].items()


def test_third_query_of_a_token_waits() -> None:
    release, started = threading.Event(), threading.Semaphore(0)
    running: list[int] = []

    class Slow(Recorded):
        def ask(self, sql: str, *, timeout: float | None = None, require_all: bool = False, limits: Limits = DEFAULT) -> Answer:
            if sql != "slow":
                return engine().ask(sql, timeout=timeout)
            running.append(1)
            started.release()
            release.wait(20)
            return super().ask(sql)

    async def run() -> tuple[int, list[int], int, int]:
        application = app(engine=Slow())
        slow = [asyncio.create_task(send(application, "POST", "/v1/query", token=TOKENS.read, body={"sql": "slow"})) for _ in range(3)]
        for _ in range(2):
            await asyncio.get_running_loop().run_in_executor(None, started.acquire)
        # The third has had its turn in the loop, as this answer comes after it.
        other = (await send(application, "GET", "/api/meshes", token=TOKENS.read)).status
        of_admin = (await send(application, "POST", "/v1/query", token=TOKENS.admin, body={"sql": "SELECT 1"})).status
        at_once = len(running)
        release.set()
        return at_once, [one.status for one in await asyncio.gather(*slow)], other, of_admin

    assert asyncio.run(run()) == (2, [200, 200, 200], 200, 200)


def test_values_without_a_form_in_json_have_one() -> None:
    table = pa.table(
        {
            "f": pa.array([1.5, float("nan"), float("inf"), None]),
            "t": pa.array([0, 1, 2, None], pa.timestamp("us", "UTC")),
            "b": pa.array([b"\x00", b"", b"x", None]),
            "l": pa.array([[1.0, float("nan")], [], None, None]),
            "s": pa.array([{"id": 1}, None, {"id": None}, {"id": 3}]),
        }
    )
    found = rows(table)
    assert [row["f"] for row in found] == [1.5, None, None, None]
    assert found[0]["t"] == "1970-01-01T00:00:00+00:00" and found[3]["t"] is None
    assert [row["b"] for row in found] == ["AA==", "", "eA==", None]
    assert found[0]["l"] == [1.0, None] and found[1]["l"] == []
    assert found[0]["s"] == {"id": 1}


def test_columns_of_the_same_name_stay_apart() -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2]), pa.array([3])], names=["a", "a", "a_2"])
    assert rows(table) == [{"a": 1, "a_2": 2, "a_2_2": 3}]
    assert rows(pa.table({"id": [FAILURE]}), ids_as_text=True) == [{"id": str(FAILURE)}]
