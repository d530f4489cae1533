"""Requests of one token that wait for a turn: within their own time, as long as their client waits, and not too many."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pyarrow as pa
from support.asgi_call import send
from support.http_parts import TOKENS, app

from monarch.telemetry._asking import Answer
from monarch.telemetry._http.app import MOST_WAITING, TURNS
from monarch.telemetry._sql.coverage import Coverage


class Held:
    """An engine whose answers wait."""

    def __init__(self) -> None:
        self.entered, self.go, self.asked = threading.Semaphore(0), threading.Event(), [""]
        self.asked.clear()

    def ask(self, sql: str, **more: Any) -> Answer:
        self.asked.append(sql)
        self.entered.release()
        assert self.go.wait(20)
        return Answer(pa.table({"x": [1]}), Coverage(1, 1))


def run(test: Callable[[Any, Held], Awaitable[None]]) -> list[str]:
    """A test of an application whose turns are taken; the statements that were asked."""
    held = Held()

    async def all_of_it() -> None:
        one = app(engine=held)
        first = [asyncio.ensure_future(ask(one, "first")) for _ in range(TURNS)]
        for _ in first:
            await asyncio.to_thread(held.entered.acquire)
        try:
            await test(one, held)
        finally:
            held.go.set()
        assert [answer.status for answer in await asyncio.gather(*first)] == [200] * TURNS

    asyncio.run(all_of_it())
    return held.asked


async def ask(one: Any, sql: str, **more: Any) -> Any:
    return await send(one, "POST", "/v1/query", token=TOKENS.read, body={"sql": sql, **more})


def test_wait_for_a_turn_counts_as_query_time() -> None:
    async def test(one: Any, held: Held) -> None:
        answer = await ask(one, "late", timeout_s=0.01)
        assert answer.status == 504 and "waited for a turn" in answer.json["error"]["message"]

    assert run(test) == ["first"] * TURNS


def test_too_many_that_wait_are_refused_at_once() -> None:
    async def test(one: Any, held: Held) -> None:
        waiting = [asyncio.ensure_future(ask(one, "next")) for _ in range(MOST_WAITING)]
        # Each of them starts to wait before this one arrives.
        refused = await asyncio.ensure_future(ask(one, "refused"))
        assert refused.status == 503 and f"{MOST_WAITING} queries" in refused.json["error"]["message"]
        held.go.set()
        assert [answer.status for answer in await asyncio.gather(*waiting)] == [200] * MOST_WAITING

    assert run(test) == ["first"] * TURNS + ["next"] * MOST_WAITING


def test_query_of_a_departed_client_gets_no_turn() -> None:
    async def test(one: Any, held: Held) -> None:
        gone = asyncio.Event()

        async def leaving(scope: Any, receive: Any, take: Any) -> None:
            async def until_gone() -> Any:
                message = asyncio.ensure_future(receive())
                left = asyncio.ensure_future(gone.wait())
                await asyncio.wait((message, left), return_when=asyncio.FIRST_COMPLETED)
                if message.done():
                    return message.result()
                message.cancel()
                return {"type": "http.disconnect"}

            await one(scope, until_gone, take)

        left = asyncio.ensure_future(ask(leaving, "left"))
        stays = asyncio.ensure_future(ask(one, "stays"))
        gone.set()
        assert (await left).status == 408
        held.go.set()
        assert (await stays).status == 200

    assert run(test) == ["first"] * TURNS + ["stays"]


def test_error_of_a_missing_token_names_its_header() -> None:
    answer = asyncio.run(send(app(), "GET", "/v1/tree"))
    assert answer.status == 401 and "header Authorization" in answer.text and "***" not in answer.text
