"""A client that leaves takes its questions along, and the questions of one request do not wait for each other."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from support.asgi_call import send
from support.http_parts import TOKENS, app, engine, parts

from monarch.telemetry._asking import ASKER, Answer, Asker
from monarch.telemetry._http.app import App
from monarch.telemetry._http.auth import Names
from monarch.telemetry._http.routes import ROUTES
from monarch.telemetry.errors import QueryError


class Working:
    """An engine whose answers come when its asker leaves; `cancelled` has the statements that ended so."""

    def __init__(self) -> None:
        self.asked, self.cancelled = threading.Event(), list[str]()

    def ask(self, sql: str, **more: Any) -> Answer:
        gone = threading.Event()
        with ASKER.get().asks(gone.set):
            self.asked.set()
            assert gone.wait(20)
        self.cancelled.append(sql)
        raise QueryError("the query was cancelled")


class Leaving:
    """Calls of an application whose client leaves when `gone` is set."""

    def __init__(self, one: Any) -> None:
        self._one = one
        self.gone = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, take: Any) -> None:
        async def until_gone() -> Any:
            message, left = asyncio.ensure_future(receive()), asyncio.ensure_future(self.gone.wait())
            await asyncio.wait((message, left), return_when=asyncio.FIRST_COMPLETED)
            left.cancel()
            if message.done():
                return message.result()
            message.cancel()
            return {"type": "http.disconnect"}

        await self._one(scope, until_gone, take)


@pytest.mark.parametrize(
    ("method", "url", "body"),
    [("POST", "/v1/query", {"sql": "SELECT 1"}), ("POST", "/api/query", {"sql": "SELECT 1"}), ("GET", "/api/meshes", None)],
)
def test_query_of_a_departed_client_is_cancelled(method: str, url: str, body: Any) -> None:
    working = Working()

    async def run() -> int:
        leaving = Leaving(app(engine=working))
        answer = asyncio.ensure_future(send(leaving, method, url, token=TOKENS.read, body=body))
        await asyncio.to_thread(working.asked.wait)
        assert not answer.done() and working.cancelled == []
        leaving.gone.set()
        return (await answer).status

    assert asyncio.run(run()) == 408
    assert len(working.cancelled) == 1


def test_query_of_a_timed_out_request_is_cancelled() -> None:
    working = Working()

    routes = [route._replace(seconds=0.2) for route in ROUTES]

    async def run() -> int:
        one = App(parts(engine=working), TOKENS, Names(), routes=routes)
        found = await send(one, "GET", "/api/meshes", token=TOKENS.read)
        while one.running:  # polls: the end of a task of the server has no event
            await asyncio.sleep(0)
        return found.status

    assert asyncio.run(run()) == 504
    assert len(working.cancelled) == 1


def test_query_after_departure_is_cancelled_at_once() -> None:
    asker, cancelled = Asker(), list[int]()
    with asker.asks(lambda: cancelled.append(1)):
        pass
    with asker.asks(lambda: cancelled.append(2)):
        asker.leave()
        assert cancelled == [2]
    with asker.asks(lambda: cancelled.append(3)):
        assert cancelled == [2, 3]


class Together:
    """An engine that answers when several statements are being asked."""

    def __init__(self, several: int) -> None:
        self._barrier = threading.Barrier(several)
        self._left = several
        self._lock = threading.Lock()

    def ask(self, sql: str, **more: Any) -> Answer:
        assert ASKER.get() is not None
        with self._lock:
            waits = self._left > 0
            self._left -= 1
        if waits:
            self._barrier.wait(20)
        return engine().ask(sql, **more)


@pytest.mark.parametrize("path", ["/api/summary", "/api/dag", "/api/message-stats"])
def test_statements_of_a_page_are_asked_together(path: str) -> None:
    found = asyncio.run(send(app(engine=Together(4)), "GET", path, token=TOKENS.read))
    assert found.status == 200, found.text
    assert found.json == asyncio.run(send(app(), "GET", path, token=TOKENS.read)).json


def test_error_of_one_statement_is_the_answer() -> None:
    class Broken:
        def ask(self, sql: str, **more: Any) -> Answer:
            if "actor_status_events" in sql:
                raise QueryError("no rows today")
            return engine().ask(sql, **more)

    found = asyncio.run(send(app(engine=Broken()), "GET", "/api/summary", token=TOKENS.read))
    assert found.status == 400 and "no rows today" in found.text
