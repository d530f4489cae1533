"""HTTP servers on loopback over the made-up job."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import Any

from support.http_parts import TOKENS, parts

from monarch.telemetry._http.app import App
from monarch.telemetry._http.auth import Names
from monarch.telemetry._http.server import Address, Server, parse_address

ANY = (Address("127.0.0.1", 0),)
Make = Callable[[Names], App]


def make(**more: Any) -> Make:
    return lambda names: App(parts(**more), TOKENS, names)


@contextlib.contextmanager
def served(application: Make | None = None, **more: Any) -> Generator[str]:
    """The URL of a server."""
    server = Server(application or make(), ANY, **more)
    try:
        yield server.start()[0]
    finally:
        server.stop()


def place(url: str) -> tuple[str, int]:
    found = parse_address(url.rpartition("/")[2])
    return found.host, found.port
