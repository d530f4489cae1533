"""The HTTP API of this process: tokens from a folder, a server, and the file by which clients find its token. The job calls it."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from monarch.telemetry._http.auth import Tokens, publish, tokens_in
from monarch.telemetry._http.parts import Parts
from monarch.telemetry.errors import TelemetryError

if TYPE_CHECKING:
    from monarch.telemetry._http.server import Address, Server, Tls

_log = logging.getLogger("monarch.telemetry")
_lock = threading.Lock()
# The servers of this process, newest first: those of one folder share its file.
_running: list[Serving] = []


class Serving:
    """Servers that run, of the same parts. `urls` are in the order of their addresses."""

    def __init__(self, start: Callable[[Sequence[Address]], Server], addresses: Sequence[Address], tokens: Tokens, folder: Path) -> None:
        self._start, self.folder = start, folder
        self._pid = os.getpid()
        self.tokens = tokens
        self.urls: tuple[str, ...] = ()
        self._servers: list[Server] = []
        with _lock:
            _running.insert(0, self)
        try:
            self._begin(addresses)
        except BaseException:
            with _lock:
                _running.remove(self)
            raise

    def add(self, address: Address) -> int:
        """Serves at one more address; its place in `urls`. `TelemetryError` where that cannot be bound."""
        self._begin([address])
        return len(self.urls) - 1

    def _begin(self, addresses: Sequence[Address]) -> None:
        server, before = self._start(addresses), self.urls
        self.urls += server.urls
        try:
            _publish(self.folder, self.tokens)
        except BaseException:
            # A server that no client can find is useless.
            self.urls = before
            server.stop()
            raise
        self._servers.append(server)

    def dashboard_url(self, index: int = 0) -> str:
        """The URL of the dashboard at an address, with the token behind `#`: browsers do not send that part."""
        return f"{self.urls[index]}/#{self.tokens.admin}"

    def stop(self) -> None:
        """Ends the servers within a second. Nothing in a fork, whose parent serves."""
        if os.getpid() == self._pid:
            for server in self._servers:
                server.stop()
            self.withdraw()

    def withdraw(self) -> None:
        """The token is no longer found by the URLs. Nothing in a fork."""
        if os.getpid() != self._pid:
            return
        with _lock:
            if self in _running:
                _running.remove(self)
        try:
            _publish(self.folder, self.tokens)
        except TelemetryError as error:
            _log.debug("%s", error)  # the folder may have been removed with the job


def is_served(folder: Path) -> bool:
    """Whether this process has a server whose tokens are in that folder."""
    with _lock:
        return any(one.folder == folder for one in _running)


def _publish(folder: Path, tokens: Tokens) -> None:
    with _lock:
        mine = [one for one in _running if one.folder == folder]
        publish(folder, tokens, [url for one in mine for url in one.urls])


def address_of(text: str) -> Address:
    """`host:port` or `[number]:port`. `TelemetryError` for another text, and where the extra `http` is not installed."""
    _need_extra()
    from monarch.telemetry._http.server import parse_address

    try:
        return parse_address(text)
    except ValueError as error:
        raise TelemetryError(f"admin_addr: {error}") from None


def serve(
    parts: Parts,
    folder: Path,
    addresses: Sequence[Address | tuple[str, int]] = (("127.0.0.1", 1729),),
    *,
    tls: Tls | None = None,
    insecure: bool = False,
    names: Iterable[str] = (),
) -> Serving:
    """Serves `parts` at these addresses, with the tokens of the folder, which are made if there are none.

    `TelemetryError` where the extra `http` is not installed, an address cannot be bound, or one of other machines has no certificate.
    """
    _need_extra()
    from monarch.telemetry._http.app import App
    from monarch.telemetry._http.server import Address, Server

    tokens, known_as = tokens_in(folder), tuple(names)

    def start(places: Sequence[Address]) -> Server:
        server = Server(lambda known: App(parts, tokens, known), places, tls=tls, insecure=insecure, names=known_as)
        server.start()
        return server

    return Serving(start, [Address(*one) for one in addresses], tokens, folder)


def _need_extra() -> None:
    try:
        import_module("monarch.telemetry._http.app")
        import_module("monarch.telemetry._http.server")
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("starlette", "uvicorn", "h11"):
            raise
        raise TelemetryError(f"the HTTP API needs {error.name}", hint="pip install 'monarch-telemetry[http]'") from None
