"""The terminal UI over the made-up job: a client without sockets, and what a screen shows as text."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from support import asgi_call
from support.http_parts import TOKENS, app
from support.made_up_job import END
from textual.pilot import Pilot

from monarch.telemetry._http.http_client import _error, parsed
from monarch.telemetry._tui.api import Api
from monarch.telemetry._tui.texts import Language, Texts
from monarch.telemetry._tui.tui import Tui

URL = "http://127.0.0.1:1729"
# Seconds after which a hung screen ends a test; a working screen is found at once.
_MOST_SECONDS = 20.0


class AsgiClient:
    """Requests to the application in this process. `before` is called with each path, in the thread of the request."""

    def __init__(self, *, token: str = TOKENS.admin, before: Callable[[str], None] = lambda path: None, **more: Any) -> None:
        self.url = URL
        self.paths: list[str] = []
        self._token, self._before, self._more = token, before, more

    def get(self, path: str, seconds: float) -> bytes:
        return self._call("GET", path, None)

    def post(self, path: str, body: dict[str, Any], seconds: float) -> bytes:
        return self._call("POST", path, body)

    def _call(self, method: str, path: str, body: Any) -> bytes:
        self.paths.append(path)
        self._before(path)
        answer = asgi_call.call(lambda: app(**self._more), method, path, token=self._token, body=body)
        if answer.status != 200:
            raise _error(answer.status, parsed(answer.body, self.url, answer.status), self.url)
        return answer.body


def made(client: Any = None, *, language: Language = "en", clock: Callable[[], float] = lambda: END / 1e6, **more: Any) -> Tui:
    """The program; without an interval, so that it asks when a key wants it."""
    return Tui(Api(client or AsgiClient()), Texts(language), **{"seconds": 0.0, **more}, clock=clock)


def running(tui: Tui, size: tuple[int, int] = (80, 24)) -> AbstractAsyncContextManager[Pilot[None]]:
    return tui.run_test(size=size)


def screen(tui: Tui) -> list[str]:
    """The lines of the terminal."""
    return ["".join(part.text for part in strip).rstrip() for strip in tui.screen._compositor.render_strips()]


def strips(tui: Tui) -> list[Any]:
    """The lines of the terminal with their styles."""
    return tui.screen._compositor.render_strips()


async def shows(pilot: Pilot[None], *texts: str, never: str | None = None) -> str:
    """Waits for a screen with all these texts, and without `never`; its text."""
    until = time.monotonic() + _MOST_SECONDS
    while True:
        found = "\n".join(screen(pilot.app))
        if all(text in found for text in texts) and (never is None or never not in found):
            return found
        if time.monotonic() > until:
            raise AssertionError(f"the screen has not all of {texts}, or has {never!r}:\n{found}")
        await pilot.pause(0.01)


def run(test: Callable[[], Any]) -> None:
    """Runs a test in an event loop of its own."""
    asyncio.run(test())
