"""A proxy for HTTPS (CONNECT) on an address of this machine: what pods of a cluster without a way out reach the rest of the world by."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from types import TracebackType


class ConnectProxy:
    """Listens on a free port of `address` while the `with` block runs."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="connect-proxy", daemon=True)
        self.url = ""

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._serve, self._address, 0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            method, target, _ = head.split(" ", 2)
            if method == "CONNECT":
                host, _, port = target.rpartition(":")
                far_reader, far_writer = await asyncio.open_connection(host.strip("[]"), int(port))
                writer.write(b"HTTP/1.1 200 Connected\r\n\r\n")
                await asyncio.gather(self._copy(reader, far_writer), self._copy(far_reader, writer))
            else:
                writer.write(b"HTTP/1.1 405 Only CONNECT\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    @staticmethod
    async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def _end(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def __enter__(self) -> ConnectProxy:
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        self.url = f"http://{self._address}:{self._server.sockets[0].getsockname()[1]}"
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._server.close)
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
