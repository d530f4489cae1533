"""Calls of an ASGI application in this process, without sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

HOST = "127.0.0.1:1729"


class Response(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def text(self) -> str:
        return self.body.decode()


async def send(
    app: Any, method: str, url: str, *, token: str | None = None, headers: Mapping[str, str] | None = None, body: Any = None
) -> Response:
    """The answer to one request. A body that is no bytes is sent as JSON; a header with an empty value is left out."""
    path, _, query = url.partition("?")
    given = {"host": HOST, **({} if token is None else {"authorization": f"Bearer {token}"}), **(headers or {})}
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in given.items() if value],
        "client": ("127.0.0.1", 50_000),
        "server": ("127.0.0.1", 1729),
    }
    parts = [data[at : at + 65_536] for at in range(0, len(data), 65_536)] or [b""]
    never = asyncio.Event()

    async def receive() -> Any:
        if parts:
            part = parts.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(parts)}
        await never.wait()

    found: dict[str, Any] = {"body": b""}

    async def take(message: Any) -> None:
        if message["type"] == "http.response.start":
            found["status"] = message["status"]
            found["headers"] = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            found["body"] += message.get("body", b"")

    await app(scope, receive, take)
    return Response(found["status"], found["headers"], found["body"])


def call(make: Any, method: str, url: str, **more: Any) -> Response:
    """`send` to an application that `make` makes, in an event loop of its own."""

    async def run() -> Response:
        return await send(make(), method, url, **more)

    return asyncio.run(run())
