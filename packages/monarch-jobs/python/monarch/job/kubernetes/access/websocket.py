"""The client's half of WebSocket (RFC 6455) on asyncio, as far as the channels of an API server need it.

Messages are passed on in parts, as they arrive, and each write waits until the socket takes more: what is in between is bounded.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import os
import socket
import ssl
from concurrent.futures import Executor
from typing import TYPE_CHECKING

from monarch.job.kubernetes.access import dialing
from monarch.job.kubernetes.access.connection import CONNECT_SECONDS

if TYPE_CHECKING:
    from monarch.job.kubernetes.access.connection import ApiConnection

_MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_CONTINUATION, _TEXT, _BINARY, _CLOSE, _PING, _PONG = 0, 1, 2, 8, 9, 10
_READ = 1 << 16
_MOST_CONTROL = 125
_MOST_ANSWER = 1 << 16


class UpgradeRefusedError(Exception):
    """The server answered with another code than 101."""

    def __init__(self, status: int, data: bytes) -> None:
        super().__init__(f"HTTP {status}")
        self.status, self.data = status, data


class WebSocket:
    """Messages whose first byte is a channel."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        # The frame in progress: its remaining bytes, and whether the next one is the channel.
        self._left, self._is_begin = 0, False
        self._channel = 0
        self._is_closed = False

    async def receive(self) -> tuple[int, bytes] | None:
        """Channel and bytes, a part of a message; None after the end. `ConnectionError` where there is no proper end."""
        try:
            while True:
                if self._left == 0:
                    if not await self._next_frame():
                        return None
                elif self._is_begin:
                    self._channel = (await self._reader.readexactly(1))[0]
                    self._left -= 1
                    self._is_begin = False
                else:
                    data = await self._reader.read(min(self._left, _READ))
                    if not data:
                        raise ConnectionResetError("the stream ends inside a message")
                    self._left -= len(data)
                    return self._channel, data
        except asyncio.IncompleteReadError:
            raise ConnectionResetError("the stream ends without a close") from None

    async def _next_frame(self) -> bool:
        first, second = await self._reader.readexactly(2)
        code, length = first & 0x0F, second & 0x7F
        if length == 126:
            length = int.from_bytes(await self._reader.readexactly(2), "big")
        elif length == 127:
            length = int.from_bytes(await self._reader.readexactly(8), "big")
        if second & 0x80:
            raise ConnectionAbortedError("a frame of the server is masked")
        if code in (_CONTINUATION, _TEXT, _BINARY):
            self._left = length
            # An empty first fragment leaves the channel to the next one.
            self._is_begin = self._is_begin or code != _CONTINUATION
            return True
        if length > _MOST_CONTROL:
            raise ConnectionAbortedError("a control frame is too long")
        payload = await self._reader.readexactly(length)
        if code == _CLOSE:
            with contextlib.suppress(OSError):  # the server may be gone by now
                await self._frame(_CLOSE, payload[:2])
            return False
        if code == _PING:
            await self._frame(_PONG, payload)
        return True

    async def send(self, channel: int, data: bytes) -> None:
        """Returns when the socket takes more."""
        await self._frame(_BINARY, bytes([channel]) + data)

    async def _frame(self, code: int, payload: bytes) -> None:
        if self._is_closed:
            return
        self._is_closed = code == _CLOSE
        size = len(payload)
        head = bytes([0x80 | code])
        if size < 126:
            head += bytes([0x80 | size])
        elif size < 1 << 16:
            head += bytes([0x80 | 126]) + size.to_bytes(2, "big")
        else:
            head += bytes([0x80 | 127]) + size.to_bytes(8, "big")
        mask = os.urandom(4)
        key = (mask * (size // 4 + 1))[:size]
        hidden = (int.from_bytes(payload, "big") ^ int.from_bytes(key, "big")).to_bytes(size, "big")
        self._writer.write(head + mask + hidden)
        await self._writer.drain()

    async def close(self) -> None:
        """Ends it; a server that does not answer is not waited for."""
        try:
            await asyncio.wait_for(self._frame(_CLOSE, (1000).to_bytes(2, "big")), 1.0)
        except (OSError, TimeoutError):
            pass
        finally:
            self.abort()

    def abort(self) -> None:
        """Ends it at once."""
        self._writer.transport.abort()


async def connect(connection: ApiConnection, path: str, protocol: str, executor: Executor) -> WebSocket:
    """Opens `path` of the server; what dials and finds credentials runs in `executor`.

    `UpgradeRefusedError`, `OSError`, `ConnectionError` for an answer that is no HTTP; `CredentialsError`.
    """
    loop = asyncio.get_running_loop()

    def prepared() -> tuple[ssl.SSLContext | None, list[tuple[str, str]], socket.socket]:
        return connection.tls_context(), connection.headers(), dialing.connect(connection.address, CONNECT_SECONDS)

    context, headers, sock = await loop.run_in_executor(executor, prepared)
    try:
        sock.setblocking(False)
        name = connection.server_name if context is not None else None
        opening = asyncio.open_connection(sock=sock, ssl=context, limit=_READ, server_hostname=name)
        reader, writer = await asyncio.wait_for(opening, CONNECT_SECONDS)
    except BaseException:
        sock.close()
        raise
    try:
        return await asyncio.wait_for(_upgraded(reader, writer, connection, path, protocol, headers), 2 * CONNECT_SECONDS)
    except BaseException:
        writer.transport.abort()
        raise


async def _upgraded(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    connection: ApiConnection,
    path: str,
    protocol: str,
    headers: list[tuple[str, str]],
) -> WebSocket:
    key = base64.b64encode(os.urandom(16))
    host = connection.address.host
    lines = [
        f"GET {connection.base}{path} HTTP/1.1",
        f"Host: {f'[{host}]' if ':' in host else host}:{connection.address.port}",
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Key: {key.decode()}",
        "Sec-WebSocket-Version: 13",
        f"Sec-WebSocket-Protocol: {protocol}",
        "User-Agent: monarch",
        *(f"{name}: {value}" for name, value in headers),
    ]
    writer.write("\r\n".join([*lines, "", ""]).encode())
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        raise ConnectionResetError("no answer of HTTP") from None
    first, _, rest = head.decode("latin-1").partition("\r\n")
    words = first.split(None, 2)
    if len(words) < 2 or not words[1].isdigit():
        raise ConnectionAbortedError("no answer of HTTP")
    found = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in rest.splitlines())}
    if words[1] != "101":
        length = found.get("content-length", "")
        size = min(int(length), _MOST_ANSWER) if length.isdigit() else 0
        raise UpgradeRefusedError(int(words[1]), await reader.readexactly(size) if size else b"")
    expected = base64.b64encode(hashlib.sha1(key + _MAGIC).digest()).decode()
    if found.get("sec-websocket-accept") != expected or found.get("sec-websocket-protocol") != protocol:
        raise UpgradeRefusedError(101, b"the server answered the upgrade with another protocol")
    return WebSocket(reader, writer)
