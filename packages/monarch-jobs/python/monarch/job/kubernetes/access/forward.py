"""A port of a pod as a port of this machine, over the API server's websocket.

    program -- loopback --> Forward -- one websocket for each connection --> API server --> kubelet --> pod

A websocket for each connection has flow control of its own: one that is not read from delays no other. The protocol `v4.channel.k8s.io` has
no message for "nothing more will be sent": a program that has ended sending still receives, and the pod sees the end when
the connection ends, at the latest `HALF_CLOSED_SECONDS` after its last byte. Container runtimes do not pass half-closes on either.

Ours: the official client keeps what it has received and cannot pass on in memory without a bound, and has a thread for each connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from monarch.job.errors import JobError
from monarch.job.kubernetes.access import websocket
from monarch.job.kubernetes.access.connection import RESTART_SECONDS
from monarch.job.kubernetes.access.failures import Request, UnreachableError, refused, status_object
from monarch.job.kubernetes.access.kinds import parse
from monarch.job.kubernetes.access.websocket import UpgradeRefusedError, WebSocket

if TYPE_CHECKING:
    from monarch.job.kubernetes.access.client import Cluster

PROTOCOL = "v4.channel.k8s.io"
HALF_CLOSED_SECONDS = 10.0
_DATA, _ERROR = 0, 1
# The server begins each channel with the number of the port.
_PORT_BYTES = 2
_READ = 1 << 16
_BACKLOG = 1024
_DIALERS = 16
_PAUSE_S = 0.25
_START_SECONDS = 30.0
_ABORT = struct.pack("ii", 1, 0)


class UpgradeMissingError(JobError):
    """The server, or a proxy on the route to it, takes no websocket."""


class Forward:
    """Listens on the loopback once `start` has returned; `port` is that of the pod, `local` the one of this machine that is tried first.

    `report` takes lines about connections that failed.
    """

    def __init__(self, cluster: Cluster, pod: str, port: int, *, local: int = 0, report: Callable[[str], object] | None = None) -> None:
        self.cluster, self.pod, self.port = cluster, pod, port
        self._local = local
        self._report: Callable[[str], object] = report or (lambda line: None)
        self._executor = ThreadPoolExecutor(_DIALERS, "monarch-forward-dial")
        self._thread: threading.Thread | None = None
        self._listener: socket.socket | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._total = self._failed = 0
        self._last_error = ""

    def start(self) -> int:
        """The local port. A first connection shows that the pod's port can be reached.

        `UpgradeMissingError` where the server takes no websocket; `ApiError` for a missing right or pod; `UnreachableError`.
        """
        # An exec plugin has a limit of its own: its time does not count for the first connection.
        self.cluster.connection.headers()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=f"monarch-forward {self.pod}", daemon=True)
        self._thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self._probe(), self._loop).result(_START_SECONDS)
            self._listener = _listening(self._local)
            self._local = int(self._listener.getsockname()[1])
            self._loop.call_soon_threadsafe(self._begin, self._listener)
        except BaseException as e:
            self.close()
            if isinstance(e, TimeoutError):
                raise self._unreachable(f"no answer within {_START_SECONDS:.0f} s") from None
            raise
        return self._local

    def close(self) -> None:
        """Ends the connections and the listener."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            thread.join()
            self._loop.close()
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        self._executor.shutdown(wait=False, cancel_futures=True)

    def status(self) -> dict[str, Any]:
        """For people: how many connections there are, were, and failed."""
        found: dict[str, Any] = {"pod": self.pod, "port": self.port, "local": self._local, "open": len(self._tasks) - self._is_accepting}
        found |= {"total": self._total, "failed": self._failed}
        return found | ({"error": self._last_error} if self._last_error else {})

    @property
    def is_busy(self) -> bool:
        """Is there a connection?"""
        return len(self._tasks) > self._is_accepting

    @property
    def _is_accepting(self) -> int:
        return 1 if self._listener is not None and self._tasks else 0

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        for task in list(self._tasks):
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*self._tasks, return_exceptions=True))

    def _begin(self, listener: socket.socket) -> None:
        self._tasks.add(self._loop.create_task(self._accept(listener)))

    async def _probe(self) -> None:
        sock = await self._open()
        await sock.close()

    async def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                sock, _ = await self._loop.sock_accept(listener)
            except OSError as e:
                # No descriptor is free: the end of a connection frees one.
                self._fail(f"no connection can be accepted: {e.strerror}")
                await asyncio.sleep(_PAUSE_S)
                continue
            self._total += 1
            task = self._loop.create_task(self._serve(sock))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        is_proper = False
        try:
            remote = await self._open()
            try:
                is_proper = await self._relay(sock, remote)
            finally:
                remote.abort()
        except (OSError, JobError) as e:
            self._fail("; ".join(line.strip() for line in str(e).splitlines() if not line.startswith("hint:")))
        finally:
            if not is_proper:
                # The program gets a reset, because it might take an end for the complete data.
                with contextlib.suppress(OSError):
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
            sock.close()

    async def _relay(self, sock: socket.socket, remote: WebSocket) -> bool:
        """Both ways, to the end of both; true where that is no failure."""
        moved = [time.monotonic()]
        up = asyncio.create_task(self._up(sock, remote))
        down = asyncio.create_task(self._down(sock, remote, moved))
        try:
            await asyncio.wait((up, down), return_when=asyncio.FIRST_COMPLETED)
            if not down.done():
                up.result()  # raises where the program has reset its connection
                while not down.done() and time.monotonic() - moved[0] < HALF_CLOSED_SECONDS:
                    await asyncio.wait((down,), timeout=1.0)
                if not down.done():
                    await remote.close()
                    return True
            await down
            return True
        finally:
            for task in (up, down):
                task.cancel()
            await asyncio.gather(up, down, return_exceptions=True)

    async def _up(self, sock: socket.socket, remote: WebSocket) -> None:
        while data := await self._loop.sock_recv(sock, _READ):
            await remote.send(_DATA, data)

    async def _down(self, sock: socket.socket, remote: WebSocket, moved: list[float]) -> None:
        seen = {_DATA: 0, _ERROR: 0}
        words = b""
        while (part := await remote.receive()) is not None:
            channel, data = part
            skipped = min(_PORT_BYTES - min(seen.get(channel, _PORT_BYTES), _PORT_BYTES), len(data))
            seen[channel] = seen.get(channel, 0) + len(data)
            data = data[skipped:]
            moved[0] = time.monotonic()
            if channel == _DATA and data:
                await self._loop.sock_sendall(sock, data)
            elif channel == _ERROR:
                words += data[: 4096 - len(words)]
        if words:
            raise ConnectionAbortedError(f"{self.pod}: {words.decode(errors='replace').strip()}")

    async def _open(self) -> WebSocket:
        """A websocket to the port. An API server that restarts is waited for."""
        cluster = self.cluster
        path = f"{parse('v1/Pod').path(cluster.namespace, self.pod, 'portforward')}?ports={self.port}"
        request = Request("create", "pods/portforward", self.pod, cluster.namespace)
        end = time.monotonic() + RESTART_SECONDS
        has_refreshed = False
        while True:
            is_last = time.monotonic() >= end or self._total == 0
            try:
                return await websocket.connect(cluster.connection, path, PROTOCOL, self._executor)
            except UpgradeRefusedError as e:
                if e.status == 401 and not has_refreshed and await self._loop.run_in_executor(self._executor, cluster.connection.refresh):
                    has_refreshed = True
                    continue
                if is_missing(e.status, e.data):
                    raise UpgradeMissingError(
                        "the API server takes no websocket for a port-forward", title=cluster.title, cause=f"HTTP {e.status}"
                    ) from None
                if is_last or e.status not in (429, 502, 503, 504):
                    raise refused(cluster.title, request, e.status, e.data) from None
            except JobError:
                raise
            except OSError as e:
                if is_last:
                    raise self._unreachable(e.strerror or str(e) or type(e).__name__) from e
            await asyncio.sleep(_PAUSE_S)

    def _unreachable(self, why: str) -> UnreachableError:
        server = self.cluster.connection.server
        return UnreachableError(f"the port-forward over {server} failed", server=server, title=self.cluster.title, cause=why)

    def _fail(self, why: str) -> None:
        self._failed += 1
        if why != self._last_error:
            self._report(f"connection to port {self.port} of {self.pod}: {why}")
        self._last_error = why


def is_missing(status: int, data: bytes) -> bool:
    """Is this the answer of something that knows no websockets, rather than a refusal of the API server?"""
    if status in (101, 405, 426, 501):
        return True
    # Proxies drop the header; the server then sees a plain request.
    message = str(status_object(data).get("message") or "").lower()
    return status == 400 and ("upgrade" in message or "websocket" in message)


def _listening(port: int) -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind(("127.0.0.1", port))
    except OSError:
        made.bind(("127.0.0.1", 0))
    made.listen(_BACKLOG)
    made.setblocking(False)
    return made
