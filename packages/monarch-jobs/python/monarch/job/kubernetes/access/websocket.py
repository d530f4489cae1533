"""A websocket to an API server, by the library `websockets`, over a connection of `ApiConnection`.

Ours: what connects the library to credentials, proxies and failures. The official client has a websocket too, of blocking threads; it keeps
what it has received in memory without a bound. Here each write waits until the socket takes more, and a message that is not read stops the
server.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any

from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as opened
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.typing import Subprotocol

from monarch.job.kubernetes.access import dialing
from monarch.job.kubernetes.access.connection import CONNECT_SECONDS

if TYPE_CHECKING:
    from monarch.job.kubernetes.access.connection import ApiConnection

# Messages are parts of a stream, of 32 KiB as a rule; as many wait to be read.
_MOST_MESSAGE = 16 << 20
_WAITING = 4


class UpgradeRefusedError(Exception):
    """The server answered with another code than 101."""

    def __init__(self, status: int, data: bytes) -> None:
        super().__init__(f"HTTP {status}")
        self.status, self.data = status, data


class WebSocket:
    """Messages whose first byte is a channel."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection

    async def receive(self) -> tuple[int, bytes] | None:
        """Channel and bytes of a message; None after the end. `ConnectionError` where there is no proper end."""
        try:
            while not (message := await self._connection.recv(decode=False)):
                pass
        except ConnectionClosed as e:
            if e.rcvd is None:
                raise ConnectionResetError("the stream ends without a close") from None
            return None
        return message[0], message[1:]

    async def send(self, channel: int, data: bytes) -> None:
        """Returns when the socket takes more; without an effect after a close of the server."""
        try:
            await self._connection.send(bytes([channel]) + data)
        except ConnectionClosed as e:
            if e.rcvd is None:
                raise ConnectionResetError("the stream has ended without a close") from None

    async def close(self) -> None:
        """Ends it; a server that does not answer is not waited for."""
        with contextlib.suppress(OSError, TimeoutError):
            await asyncio.wait_for(self._connection.close(), 1.0)
        self.abort()

    def abort(self) -> None:
        """Ends it at once."""
        self._connection.transport.abort()


async def connect(connection: ApiConnection, path: str, protocol: str, executor: Executor) -> WebSocket:
    """Opens `path` of the server; what dials and finds credentials runs in `executor`.

    `UpgradeRefusedError`, `OSError`, `ConnectionError` for an answer that is no HTTP; `CredentialsError`.
    """
    loop = asyncio.get_running_loop()

    def prepared() -> tuple[ssl.SSLContext | None, list[tuple[str, str]], socket.socket]:
        return connection.tls_context(), connection.headers(), dialing.connect(connection.address, CONNECT_SECONDS)

    context, headers, sock = await loop.run_in_executor(executor, prepared)
    host, port = connection.address.host, connection.address.port
    place = f"{f'[{host}]' if ':' in host else host}:{port}{connection.base}{path}"
    # No option for plain text: the library refuses one.
    tls: dict[str, Any] = {} if context is None else {"ssl": context, "server_hostname": connection.server_name}
    try:
        sock.setblocking(False)
        made = await opened(
            f"{'ws' if context is None else 'wss'}://{place}",
            sock=sock,
            subprotocols=[Subprotocol(protocol)],
            additional_headers=headers,
            user_agent_header="monarch",
            compression=None,
            proxy=None,
            open_timeout=2 * CONNECT_SECONDS,
            ping_interval=None,
            max_size=_MOST_MESSAGE,
            max_queue=_WAITING,
            **tls,
        )
    except (WebSocketException, ValueError) as e:
        # A redirection, such as that of a proxy to its login page, fails in the library while it handles the answer.
        answer = e if isinstance(e, InvalidStatus) else e.__cause__ or e.__context__
        if isinstance(answer, InvalidStatus):
            raise UpgradeRefusedError(answer.response.status_code, bytes(answer.response.body or b"")) from None
        sock.close()
        # Without the text, which may have the URL of a redirection.
        raise ConnectionAbortedError(f"no answer of HTTP to the upgrade: {type(e).__name__}") from None
    except BaseException:
        sock.close()
        raise
    if made.subprotocol != protocol:
        made.transport.abort()
        raise UpgradeRefusedError(101, b"the server answered the upgrade with another protocol")
    return WebSocket(made)
