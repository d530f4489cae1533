"""Long answers: few rows are objects of Python at a time, and what answers had goes back to the system."""

from __future__ import annotations

import asyncio
import json
import threading
import time
import tracemalloc
from collections.abc import Iterable
from typing import Any

import pytest
from support.asgi_call import send
from support.http_parts import TOKENS, app, parts
from support.stand_in_hosts import made

from monarch.extension.masking import Masking
from monarch.telemetry import QueryError
from monarch.telemetry._arrow import pa
from monarch.telemetry._collector import allocator
from monarch.telemetry._collector.allocator import LONG, QUESTION, Answers
from monarch.telemetry._engine import engine as engines
from monarch.telemetry._engine.one_host import OneHost
from monarch.telemetry._http import app as app_module
from monarch.telemetry._http.app import HANDLERS
from monarch.telemetry._http.calls import Call, Caller, Reply, State
from monarch.telemetry._http.cursors import Cursors
from monarch.telemetry._http.json_parts import BATCH_ROWS, batches, document, reply
from monarch.telemetry._ingest.ids import actor_id
from monarch.telemetry._tables.catalog import TABLES

ACTORS, PROC = 10_000, 21
MIB = 1 << 20


def _table(name: str, rows: list[dict[str, Any]]) -> list[Any]:
    return [pa.RecordBatch.from_pylist(rows, schema=TABLES[name].schema())]


@pytest.fixture(scope="module")
def engine() -> OneHost:
    """A job of one proc that has made many actors, each of its own mesh."""
    meshes = [{"id": 5, "timestamp_us": 1, "class": "Proc", "given_name": "workers", "full_name": "<root>.<workers>", "shape_json": "{}"}]
    meshes += [{**meshes[0], "id": 1000 + n, "class": "job.Worker", "given_name": f"worker{n}", "parent_mesh_id": 5} for n in range(ACTORS)]
    actors = [
        {"id": actor_id(PROC, 1000 + n), "timestamp_us": 2, "mesh_id": 1000 + n, "rank": 0, "full_name": f"worker{n}"}
        for n in range(ACTORS)
    ]
    messages = [
        {"id": n, "timestamp_us": 3, "from_actor_id": actors[n]["id"], "to_actor_id": actors[n - 1]["id"], "endpoint": "step"}
        for n in range(ACTORS)
    ]
    proc = {"proc_id": PROC, "host_id": 11, "mesh_id": 5, "rank": 0, "pid": 77, "started_us": 1}
    given = {"meshes": meshes, "actors": actors, "messages": messages, "procs": [proc]}
    return OneHost({name: _table(name, rows) for name, rows in given.items()})


def answer(engine: OneHost, operation: str, body: Any = None, **parameters: Any) -> Reply:
    state = State(Cursors(), Masking(TOKENS))
    call = Call(parts(engine=engine), state, Caller("read", ""), {}, parameters, body, "", "", time.monotonic() + 60)
    found = HANDLERS[operation](call)
    assert isinstance(found, Reply)
    return found


def sizes(content: bytes | Iterable[bytes]) -> list[int]:
    return [len(part) for part in ([content] if isinstance(content, bytes) else content)]


@pytest.mark.parametrize(
    ("operation", "given"),
    [
        ("api_dag", {}),
        ("api_dag", {"mode": "mesh"}),
        ("api_actors", {}),
        ("api_messages", {"limit": 10_000}),
        ("query", {"body": {"sql": "SELECT * FROM actors", "page_rows": ACTORS}}),
        ("api_query", {"body": {"sql": "SELECT * FROM messages"}}),
    ],
)
def test_long_answer_never_holds_all_row_objects(engine: OneHost, operation: str, given: dict[str, Any]) -> None:
    answer(engine, operation, **given)  # the first call imports and plans
    tracemalloc.start()
    try:
        found = sizes(answer(engine, operation, **given).content)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sum(found) > MIB and len(found) > 8
    assert peak < 3 * MIB


def test_parts_are_the_whole_answer() -> None:
    table = pa.table({"id": pa.array(range(5 * BATCH_ROWS + 1), pa.uint64()), "text": ["é" * 300] * (5 * BATCH_ROWS + 1)})
    content = reply(document({"rows": batches(table, ids_as_text=True), "none": iter(())}, {"coverage": {"a": 1}, "cursor": None})).content
    assert not isinstance(content, bytes)
    expected = [{"id": str(number), "text": "é" * 300} for number in range(table.num_rows)]
    assert json.loads(b"".join(content)) == {"rows": expected, "none": [], "coverage": {"a": 1}, "cursor": None}
    assert reply(document({}, {"few": 1})).content == b'{"few":1}'


def test_graph_of_many_actors_is_complete(engine: OneHost) -> None:
    content = answer(engine, "api_dag").content
    found = json.loads(b"".join([content] if isinstance(content, bytes) else content))
    assert len(found["nodes"]) == ACTORS + 1 and len({node["id"] for node in found["nodes"]}) == ACTORS + 1
    kinds = [edge["type"] for edge in found["edges"]]
    assert (kinds.count("hierarchy"), kinds.count("message")) == (ACTORS, ACTORS)


def test_memory_of_long_answers_is_released_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float] = []
    now = [100.0]
    monkeypatch.setattr(allocator, "give_back", lambda: given.append(now[0]))
    answers = Answers(clock=lambda: now[0], every=60.0)
    answers.had(LONG - 1)
    assert given == []
    assert answers._waits is None  # pyright: ignore[reportPrivateUsage]

    def later() -> Any:
        """What gives back, in a thread of its own."""
        waits: Any = answers._waits  # pyright: ignore[reportPrivateUsage]
        waits.cancel()
        assert given == before and waits is not threading.current_thread()
        return waits

    before = list(given)
    answers.had(1)
    waits = later()
    assert waits.interval < 1
    waits.function()
    assert given == [100.0]
    now[0] += 1
    before = list(given)
    answers.had(LONG)
    waits = later()
    assert waits.interval == 59.0
    answers.had(LONG)
    assert later() is waits
    now[0] += 59
    waits.function()
    assert given == [100.0, 160.0]


def test_small_questions_and_stacks_give_back_too(monkeypatch: pytest.MonkeyPatch) -> None:
    had: list[int] = []

    class Recorded:
        def had(self, size: int) -> None:
            had.append(size)

    monkeypatch.setattr(engines, "ANSWERS", Recorded())
    asking = made(monkeypatch, {}, 16)
    asking.ask("SELECT 1 AS x")
    with pytest.raises(QueryError):
        asking.ask("SELECT nothing FROM nowhere")
    assert had.count(QUESTION) == 2
    assert asking.stacks(None).to_json() and had[-1] == LONG


def test_server_releases_memory_after_an_answer(engine: OneHost, monkeypatch: pytest.MonkeyPatch) -> None:
    had: list[int] = []

    class Recorded:
        def had(self, size: int) -> None:
            had.append(size)

    monkeypatch.setattr(app_module, "ANSWERS", Recorded())

    async def ask(path: str) -> None:
        found = await send(app(engine=engine), "GET", path, token=TOKENS.read)
        assert found.status == 200, found.text

    asyncio.run(ask("/api/dag"))
    assert had == [LONG]
    asyncio.run(ask("/api/hosts"))
    assert len(had) == 2 and had[1] < 10_000
