"""What the operator answers by HTTP: `/healthz` and `/readyz` for the kubelet, `/metrics` for Prometheus.

Anything in the cluster may connect. So a connection is no thread, its one request is short in bytes and in time, and where there are too
many of them the oldest ends: a probe, which takes a millisecond, is always answered.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus

Answer = Callable[[], tuple[bool, str]]

# Seconds for a request to arrive, and for its answer to be taken.
REQUEST_S = 5.0
MOST_CONNECTIONS = 64
_MOST_BYTES = 8192
_BACKLOG = 128


def address(text: str) -> tuple[str, int] | None:
    """`:8081`, `127.0.0.1:8081`, `[::1]:8081`; None for `0` or nothing: nothing listens. `ValueError` for other texts."""
    if text in ("", "0"):
        return None
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"'{text}' is no address to listen at: [HOST]:PORT, or 0 for none")
    return host.removeprefix("[").removesuffix("]"), int(port)


class _Endpoints:
    def __init__(self, answers: Mapping[str, Answer]) -> None:
        self._answers = answers
        # The open connections, in the order of their arrival.
        self._open: dict[asyncio.Task[None], None] = {}

    async def run(self, listener: socket.socket) -> None:
        server = await asyncio.start_server(self._serve, sock=listener, limit=_MOST_BYTES, backlog=_BACKLOG)
        await server.serve_forever()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._exchange(reader, writer))
        self._open[task] = None
        if len(self._open) > MOST_CONNECTIONS:
            next(iter(self._open)).cancel()
        await asyncio.wait((task,))
        del self._open[task]
        if task.cancelled():
            writer.transport.abort()
        else:
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_S):
                try:
                    head = await reader.readuntil(b"\r\n\r\n")
                except asyncio.LimitOverrunError:
                    writer.write(_response(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "too long"))
                else:
                    writer.write(self._answer(head))
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            writer.transport.abort()

    def _answer(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b"\r\n")[0].decode("latin-1").partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        if method not in ("GET", "HEAD"):
            return _response(HTTPStatus.METHOD_NOT_ALLOWED, "GET only")
        answer = self._answers.get(path)
        if answer is None:
            return _response(HTTPStatus.NOT_FOUND, "not found")
        is_well, text = answer()
        return _response(HTTPStatus.OK if is_well else HTTPStatus.INTERNAL_SERVER_ERROR, text, has_body=method == "GET")


def _response(status: HTTPStatus, text: str, *, has_body: bool = True) -> bytes:
    body = text.encode()
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (body if has_body else b"")


def serve(place: tuple[str, int], answers: Mapping[str, Answer]) -> int:
    """Serves in a thread until the process ends; the port. `OSError` where it is taken."""
    host, port = place
    is_any = not host and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if ":" in host or is_any else socket.AF_INET
    listener = socket.create_server((host, port), family=family, backlog=_BACKLOG, dualstack_ipv6=is_any)
    made = _Endpoints(answers)
    threading.Thread(target=lambda: asyncio.run(made.run(listener)), name="endpoints", daemon=True).start()
    return int(listener.getsockname()[1])
