"""A connection of a client: uvicorn's, with limits of time for clients that send or read slowly, and an answer for half-closed ones."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

# Seconds for the head of a request, or for what is left of a body when its answer has been sent; and in which a client that reads nothing
# has to read something.
HEAD_SECONDS, READ_SECONDS = 10.0, 30.0
IDLE_SECONDS = 15
# Beyond this, requests are answered with 503.
CONNECTIONS = 512
_log = logging.getLogger("monarch.telemetry.http")
# What uvicorn logs as a warning is what a client did wrong, which is in the answer; any program could fill the log with it.
_log.setLevel(logging.ERROR)


class Times:
    """Seconds, by connection class: tests have shorter ones."""

    head, read = HEAD_SECONDS, READ_SECONDS


class Connection(H11Protocol):
    """One connection; used by its event loop."""

    times: type[Times] = Times

    def __init__(self, config: Config, server_state: ServerState, app_state: dict[str, Any]) -> None:
        super().__init__(config, server_state, app_state)
        self.logger = _log
        # A request line may have secrets in it, and there is the audit.
        self.access_log = False
        self._head: asyncio.TimerHandle | None = None
        self._read: asyncio.TimerHandle | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a request is being answered."""
        # uvicorn has None there until the first request.
        cycle: Any = self.cycle
        return cycle is not None and not cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
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
        """A client may end its side and still wait for the answer. TLS cannot end one side only."""
        if self.is_busy and self.scheme == "http":
            self.cycle.keep_alive = False
            return True
        return None

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._read is None:
            self._read = self.loop.call_later(self.times.read, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._read = _cancelled(self._read)

    def connection_lost(self, exc: Exception | None) -> None:
        self._head, self._read = _cancelled(self._head), _cancelled(self._read)
        super().connection_lost(exc)


def _cancelled(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
