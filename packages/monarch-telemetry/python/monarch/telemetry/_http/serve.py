"""The HTTP API of this process: tokens from a folder, a server, and the file by which clients find its token. What the job calls."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from monarch.telemetry._http.auth import Tokens, publish, tokens_in
from monarch.telemetry._http.parts import Parts
from monarch.telemetry.errors import TelemetryError

if TYPE_CHECKING:
    from monarch.telemetry._http.server import Address, Server, Tls

_log = logging.getLogger("monarch.telemetry")


class Serving:
    """A server that runs. `urls` are in the order of its addresses."""

    def __init__(self, server: Server, tokens: Tokens, folder: Path) -> None:
        self._server, self._folder = server, folder
        self.tokens = tokens
        self.urls: tuple[str, ...] = server.urls

    def dashboard_url(self, index: int = 0) -> str:
        """The URL of the dashboard at an address, with the token behind `#`: browsers do not send that part."""
        return f"{self.urls[index]}/#{self.tokens.admin}"

    def stop(self) -> None:
        """Ends the server within a second; its token is no longer found by its URLs."""
        self._server.stop()
        try:
            publish(self._folder, self.tokens, ())
        except TelemetryError as error:
            _log.debug("%s", error)  # the folder may be gone with the job


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
    try:
        from monarch.telemetry._http.app import App
        from monarch.telemetry._http.server import Address, Server
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("starlette", "uvicorn", "h11"):
            raise
        raise TelemetryError(f"the HTTP API needs {error.name}", hint="pip install 'monarch-telemetry[http]'") from None
    tokens = tokens_in(folder)
    places = [Address(*one) for one in addresses]
    server = Server(lambda known: App(parts, tokens, known), places, tls=tls, insecure=insecure, names=names)
    urls = server.start()
    try:
        publish(folder, tokens, urls)
    except BaseException:
        server.stop()
        raise
    return Serving(server, tokens, folder)
