"""Server-sent events: what is new is sent once, also what comes late, and slow or many clients are bounded."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from support.made_up_job import END, FAILURE, SECOND, rows

from monarch.telemetry._engine.one_host import OneHost
from monarch.telemetry._http import events as module
from monarch.telemetry._http.events import Events, Look
from monarch.telemetry._http.problems import Problem
from monarch.telemetry._tables.facts import FAILURES
from monarch.telemetry.errors import QueryTimeout


class Growing:
    """An engine to which failures can be added."""

    def __init__(self) -> None:
        self.rows = rows()
        self.error: Exception | None = None

    def add(self, id: int, at: int) -> None:
        row = {
            "id": id,
            "timestamp_us": at,
            "kind": "user",
            "first_cause": True,
            "mesh_name": "m",
            "exit_reason": "failed",
            "message": "line one\nline two",
        }
        self.rows["failures"] = [*self.rows["failures"], pa.RecordBatch.from_pylist([row], schema=FAILURES.schema())]

    def ask(self, sql: str, **more: Any) -> Any:
        if self.error is not None:
            raise self.error
        return OneHost(self.rows).ask(sql)


async def run_here(work: Callable[[], Any], _: float) -> Any:
    return work()


def streams(engine: Any, **more: Any) -> Events:
    return Events(engine, run_here, clock=lambda: END / 1e6, look_seconds=0.001, **more)


def event(text: bytes) -> tuple[str, Any]:
    lines = dict(line.split(": ", 1) for line in text.decode().strip().splitlines())
    return lines["event"], json.loads(lines["data"])


def test_look_finds_new_and_late_events() -> None:
    engine = Growing()
    look = Look(engine, lambda: END / 1e6)
    look.begin()
    assert look.find() == []
    engine.add(1, END + SECOND)
    engine.add(2, END - 5 * SECOND)
    assert [one.row["id"] for one in look.find()] == ["2", "1"]
    assert look.find() == []
    # Older than any late event.
    engine.add(3, END - 60 * SECOND)
    assert look.find() == []


def test_look_forgets_old_events() -> None:
    engine = Growing()
    look = Look(engine, lambda: END / 1e6)
    for number in range(30):
        engine.add(100 + number, END + number * 4 * SECOND)
        assert [one.row["id"] for one in look.find()] == [str(100 + number)]
    assert len(look._seen) == 3  # pyright: ignore[reportPrivateUsage]


def test_client_gets_what_happens_after_it_came() -> None:
    engine = Growing()

    async def run() -> tuple[str, Any]:
        events = streams(engine)
        stream = await events.stream(None)
        assert (await anext(stream)).startswith(b":")
        engine.add(7, END + SECOND)
        text = await anext(stream)
        assert text.startswith(f"id: {END + SECOND}\n".encode()) and text.endswith(b"\n\n") and text.count(b"\n\n") == 1
        events.close()
        return event(text)

    kind, row = asyncio.run(run())
    assert (kind, row["id"], row["message"]) == ("failure", "7", "line one\nline two")


def test_client_goes_on_from_its_last_event() -> None:
    async def run() -> list[tuple[str, Any]]:
        events = streams(Growing())
        stream = await events.stream(END - 60 * SECOND)
        await anext(stream)
        found = [event(await anext(stream)) for _ in range(4)]
        events.close()
        return found

    found = asyncio.run(run())
    times = [row["timestamp_us"] for _, row in found]
    assert times == sorted(times)


def test_missed_events_have_the_failures() -> None:
    found = Look(Growing(), lambda: END / 1e6).before(END - 58 * SECOND)
    assert str(FAILURE) in {one.row["id"] for one in found if one.kind == "failure"}
    assert {one.row["new_status"] for one in found if one.kind == "status"} == {"Failed"}
    every = Look(Growing(), lambda: END / 1e6).before(0)
    assert {one.row["new_status"] for one in every if one.kind == "status"} == {"Created", "Initializing", "Stopped", "Failed"}


def test_quiet_stream_shows_that_it_lives() -> None:
    async def run() -> bytes:
        events = streams(Growing(), quiet_seconds=0.001)
        stream = await events.stream(None)
        await anext(stream)
        text = await anext(stream)
        events.close()
        return text

    assert asyncio.run(run()).startswith(b":")


def test_temporary_engine_failure_loses_no_event() -> None:
    engine = Growing()

    async def run() -> tuple[str, Any]:
        events = streams(engine)
        stream = await events.stream(None)
        await anext(stream)
        engine.error = QueryTimeout("busy")
        engine.add(8, END + SECOND)
        for _ in range(3):
            await asyncio.sleep(0)
        engine.error = None
        text = await anext(stream)
        events.close()
        return event(text)

    assert asyncio.run(run())[1]["id"] == "8"


def test_slow_client_loses_events_and_gets_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAITING", 3)
    engine = Growing()

    async def run() -> list[bytes]:
        events = streams(engine)
        slow, quick = await events.stream(None), await events.stream(None)
        await anext(slow)
        await anext(quick)
        for number in range(8):
            engine.add(50 + number, END + number)
            # When the quick client has it, it was available to the slow one.
            await anext(quick)
        found = [await anext(slow) for _ in range(4)]
        events.close()
        return found

    found = asyncio.run(run())
    assert [event(text)[1]["id"] for text in found[:3]] == ["50", "51", "52"]
    assert found[3] == b"event: lost\ndata: 5\n\n"


def test_clients_are_bounded_and_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CLIENTS", 2)

    async def run() -> None:
        events = streams(Growing())
        first, second = await events.stream(None), await events.stream(None)
        with pytest.raises(Problem) as refused:
            await events.stream(None)
        assert refused.value.status == 503
        await anext(first)
        await first.aclose()
        third = await events.stream(None)
        await anext(third)
        events.close()
        assert [text async for text in third] == []
        assert [text async for text in second] == [b": events of the job\n\n"]
        with pytest.raises(Problem, match="stopping"):
            await events.stream(None)

    asyncio.run(run())


def test_first_look_that_fails_leaves_no_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CLIENTS", 1)
    engine = Growing()

    async def run() -> None:
        events = streams(engine)
        engine.error = QueryTimeout("busy")
        with pytest.raises(QueryTimeout):
            await events.stream(None)
        engine.error = None
        stream = await events.stream(None)
        assert await anext(stream)
        events.close()

    asyncio.run(run())
