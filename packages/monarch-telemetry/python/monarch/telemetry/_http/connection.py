"""A connection of a client: uvicorn's, with limits of time for clients that send or read slowly, and an answer for half-closed ones."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Any, cast

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from monarch.telemetry._http.places import STATE, Place

# Seconds for the head of a request, or for the rest of a body after its answer was sent; and seconds within which a client has to read
# something.
HEAD_SECONDS, READ_SECONDS = 10.0, 30.0
IDLE_SECONDS = 15
# Seconds between two checks whether a client that closed its side is still connected.
_LOOK_SECONDS = 0.2
# Seconds in which a refused client may send the rest of its request, which is discarded, and the most bytes of that rest.
_REST_SECONDS, _REST_BYTES = 2.0, 64 << 20
# With more connections than this, requests are answered with 503.
CONNECTIONS = 512
_log = logging.getLogger("monarch.telemetry.http")
# Warnings of uvicorn are about errors of a client, which are in the answer; any program could fill the log with them.
_log.setLevel(logging.ERROR)


class Times:
    """Seconds, by connection class: tests have shorter ones."""

    head, read = HEAD_SECONDS, READ_SECONDS


class Ending:
    """A transport that ends its own side first, and then waits for the end of the other one.

    A socket that is closed while something is unread resets the connection: a client would lose the answer that has the reason.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._left = _REST_BYTES
        self.is_ending = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        return self.is_ending or self._transport.is_closing()

    def close(self) -> None:
        if self.is_closing() or not self._transport.can_write_eof():
            self._transport.close()
            return
        self.is_ending = True
        try:
            self._transport.write_eof()
        except OSError:
            # The client has reset the connection: it left before it read the whole answer.
            self._transport.abort()
            return
        self._transport.resume_reading()
        self._loop.call_later(_REST_SECONDS, self._transport.close)

    def rest(self, size: int) -> None:
        """So many bytes came that are not read."""
        self._left -= size
        if self._left < 0:
            self._transport.abort()


class Connection(H11Protocol):
    """One connection; used by its event loop."""

    times: type[Times] = Times
    transport: Any

    def __init__(self, config: Config, server_state: ServerState, app_state: dict[str, Any]) -> None:
        super().__init__(config, server_state, app_state)
        self.logger = _log
        # A request line may contain secrets, and requests are in the audit.
        self.access_log = False
        self._head: asyncio.TimerHandle | None = None
        self._read: asyncio.TimerHandle | None = None
        self._look: asyncio.TimerHandle | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a request is being answered."""
        # uvicorn has None there until the first request.
        cycle: Any = self.cycle
        return cycle is not None and not cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(cast("asyncio.Transport", Ending(transport, self.loop)))
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_ending:
            self.transport.rest(len(data))
            return
        super().data_received(data)
        if self.is_busy:
            self._head = _cancelled(self._head)
        elif self._head is None and not self.transport.is_closing():
            self._wait_for_head()

    def _wait_for_head(self) -> None:
        self._head = self.loop.call_later(self.times.head, self._too_slow)

    def _too_slow(self) -> None:
        self._head = None
        if not self.is_busy:
            self.transport.abort()

    def eof_received(self) -> bool | None:  # pyright: ignore[reportIncompatibleMethodOverride] asyncio takes a bool
        """A client may end its side and still wait for the answer, or has left. TLS cannot end one side only."""
        if self.is_busy and self.scheme == "http":
            self.cycle.keep_alive = False
            self._look = self.loop.call_later(_LOOK_SECONDS, self._look_at_client, True)
            return True
        return None

    def _look_at_client(self, is_first: bool = False) -> None:
        if not self.is_busy or self.transport.is_closing():
            return
        if is_first and not self.cycle.response_started and self.scope["http_version"] == "1.1":
            # The system of a disconnected client answers this with a reset; a client that waits ignores it.
            self.transport.write(self.conn.send(h11.InformationalResponse(status_code=100, headers=[], reason="Continue")))
        if self.transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.transport.abort()
            return
        self._look = self.loop.call_later(_LOOK_SECONDS, self._look_at_client)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._read is None:
            self._read = self.loop.call_later(self.times.read, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._read = _cancelled(self._read)

    def connection_lost(self, exc: Exception | None) -> None:
        place: Place | None = self.app_state.get(STATE)
        if place is not None:
            place.leave()
        self._head, self._read, self._look = _cancelled(self._head), _cancelled(self._read), _cancelled(self._look)
        super().connection_lost(exc)


def _cancelled(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
