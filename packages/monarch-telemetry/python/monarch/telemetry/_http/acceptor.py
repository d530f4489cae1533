"""The listening sockets of a server: each connection gets a place before it costs anything else.

asyncio's own server makes the transport of each connection, and waits for its TLS handshake, before a protocol can refuse it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable, Sequence

from monarch.extension import is_own_peer
from monarch.telemetry._http.places import Place, Places

# Connections that are accepted before the loop continues with others.
_BATCH = 32
# Seconds until the next attempt if the process has no descriptor left, and for a TLS handshake.
_RETRY_SECONDS, _HANDSHAKE_SECONDS = 0.5, 10.0
_log = logging.getLogger("monarch.telemetry")


class Acceptor:
    """Accepts connections at `listening` sockets in the running event loop. `make` gives the protocol of a place."""

    def __init__(
        self, listening: Sequence[socket.socket], make: Callable[[Place], asyncio.Protocol], *, tls: ssl.SSLContext | None = None
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._listening, self._make, self._tls = tuple(listening), make, tls
        self._places = Places()
        self._beginning: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self._has_warned = False
        for one in self._listening:
            self._loop.add_reader(one, self._accept, one)

    def close(self) -> None:
        """Accepts no more. Connections that were accepted begin all the same, unless their handshake is not done."""
        self._is_closed = True
        for one in self._listening:
            self._loop.remove_reader(one)

    async def begun(self) -> None:
        """Ends handshakes, once connections without one have begun."""
        for task in self._beginning:
            if self._tls is not None:
                task.cancel()
        if self._beginning:
            await asyncio.wait(self._beginning)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_BATCH):
            try:
                one, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no descriptor or memory is left
                if not self._has_warned:
                    _log.warning("the HTTP server accepts no connection: %s", error.strerror)
                self._has_warned = True
                self._loop.remove_reader(listening)
                self._loop.call_later(_RETRY_SECONDS, self._again, listening)
                return
            one.setblocking(False)
            place = self._places.take(is_own=is_own_peer(one) is True)
            if place is None:
                one.close()
                continue
            task = self._loop.create_task(self._begin(one, place))
            place.end = task.cancel
            self._beginning.add(task)
            task.add_done_callback(self._beginning.discard)

    def _again(self, listening: socket.socket) -> None:
        if not self._is_closed:
            self._loop.add_reader(listening, self._accept, listening)

    async def _begin(self, one: socket.socket, place: Place) -> None:
        seconds = None if self._tls is None else _HANDSHAKE_SECONDS
        try:
            transport, _ = await self._loop.connect_accepted_socket(
                lambda: self._make(place), one, ssl=self._tls, ssl_handshake_timeout=seconds
            )
        except asyncio.CancelledError:
            # The oldest connection without a token, before its first byte, or at the end of the server.
            _discard(one, place)
            raise
        except OSError:  # of the handshake, or the client has disconnected
            _discard(one, place)
            return
        place.end = transport.abort


def _discard(one: socket.socket, place: Place) -> None:
    place.leave()
    with contextlib.suppress(OSError):
        one.close()
