"""The server of a job: its sockets, a thread with an event loop, and an end that takes at most a second.

uvicorn's connections are used without its server: that one would change the logging of other servers in the process, and it waits for
clients when it stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, cast

from uvicorn.config import Config
from uvicorn.server import ServerState

from monarch.telemetry._http.acceptor import Acceptor
from monarch.telemetry._http.app import App
from monarch.telemetry._http.auth import LOOPBACK, Names
from monarch.telemetry._http.connection import CONNECTIONS, IDLE_SECONDS, Connection
from monarch.telemetry._http.places import STATE
from monarch.telemetry.errors import TelemetryError

STOP_SECONDS = 1.0
# Shares of that time: for answers in progress, and for rows of the audit.
_ANSWERS, _AUDIT = 0.4, 0.2
_START_SECONDS = 20.0
# Rounds of the loop: asyncio takes three to create or end a transport.
_ROUNDS = 5
# Ports that are tried after an occupied one; then any port.
_NEXT_PORTS = 32
_BACKLOG = 256
_ANY = frozenset({"0.0.0.0", "::"})
_log = logging.getLogger("monarch.telemetry")


class Address(NamedTuple):
    """A name or number of a host, and a port; 0 is any free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """`host:port` or `[number]:port`. `ValueError`."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        colon = ""
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 0xFFFF:
        raise ValueError(f"{text!r} is no address; one is 127.0.0.1:1729")
    return Address(host, int(port))


class Tls(NamedTuple):
    """Files in PEM: the certificate with those above it, and its key."""

    certificate: Path
    key: Path


class Server:
    """Serves an application at addresses. `names` are further names under which browsers may reach it.

    An address that is not of this machine alone needs `tls`, or `insecure=True`. `make` makes the application, in the event loop.
    """

    def __init__(
        self,
        make: Callable[[Names], App],
        addresses: Sequence[Address] = (Address("127.0.0.1", 1729),),
        *,
        tls: Tls | None = None,
        insecure: bool = False,
        names: Iterable[str] = (),
        connection: type[Connection] = Connection,
    ) -> None:
        self._make, self._addresses, self._connection = make, tuple(addresses), connection
        self._context = None if tls is None else _context(tls)
        hosts = {*LOOPBACK, *(name.lower() for name in names)}
        for address in self._addresses:
            if tls is None and not insecure and not _is_loopback(address.host):
                raise TelemetryError(
                    f"{address} can be reached from other machines, and there is no certificate",
                    hint="give certificate and key (--tls-cert, --tls-key), bind 127.0.0.1, or accept the risk with insecure=True",
                )
            hosts |= {socket.gethostname().lower()} if address.host in _ANY else {address.host.lower()}
        self._names = Names(frozenset(hosts), "http" if tls is None else "https")
        self._sockets: list[socket.socket] = []
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._ready = threading.Event()
        self._failure: BaseException | None = None

    @property
    def urls(self) -> tuple[str, ...]:
        """The base URL of each address, with the port that it has got."""
        found: list[str] = []
        for address, one in zip(self._addresses, self._sockets, strict=False):
            host = socket.gethostname() if address.host in _ANY else address.host
            found.append(f"{self._names.scheme}://{Address(host, one.getsockname()[1])}")
        return tuple(found)

    def start(self) -> tuple[str, ...]:
        """The URLs. `TelemetryError` where an address cannot be bound; a port that is taken is none: the next free one is."""
        if self._thread is not None:
            raise RuntimeError("the server was started before")
        try:
            for address in self._addresses:
                self._sockets.append(_bound(address))
        except BaseException:
            self._close_sockets()
            raise
        self._thread = threading.Thread(target=self._run, name="monarch telemetry http", daemon=True)
        self._thread.start()
        if not self._ready.wait(_START_SECONDS) or self._failure is not None:
            self.stop()
            raise TelemetryError(f"the HTTP server has not started: {self._failure or 'no answer of its thread'}") from self._failure
        return self.urls

    def stop(self, timeout: float = STOP_SECONDS) -> None:
        """Ends the server; returns within `timeout` seconds. A second call does nothing."""
        thread, loop, stop = self._thread, self._loop, self._stop
        if thread is None:
            return
        if loop is not None and stop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(stop.set)
        if thread is not threading.current_thread():
            thread.join(timeout)
        # Even if the thread hangs: the port is free again.
        self._close_sockets()

    def _close_sockets(self) -> None:
        for one in self._sockets:
            one.close()

    def _run(self) -> None:
        try:
            with asyncio.Runner() as runner:
                runner.run(self._serve())
        except BaseException as error:
            self._failure = error
            if self._ready.is_set():
                _log.exception("the HTTP server has ended")
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        self._stop, self._loop = asyncio.Event(), loop
        app = self._make(self._names)
        # `access_log=True` and no level: otherwise the configuration changes the loggers of uvicorn, which another server may use.
        config = Config(
            app,
            http=self._connection,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level=None,
            access_log=True,
            # The headers of a client do not prove its address.
            proxy_headers=False,
            server_header=False,
            date_header=False,
            limit_concurrency=CONNECTIONS,
            timeout_keep_alive=IDLE_SECONDS,
        )
        config.load()
        state = ServerState()
        acceptor = Acceptor(self._sockets, lambda place: self._connection(config, state, {STATE: place}), tls=self._context)
        self._ready.set()
        await self._stop.wait()
        began = time.monotonic()
        acceptor.close()
        await acceptor.begun()
        await _rounds()
        app.close()
        await _ended(state, began + _ANSWERS)
        flush = threading.Thread(target=app.audit.flush, name="monarch telemetry audit", daemon=True)
        flush.start()
        # In the loop, which has no other work at that point.
        flush.join(_AUDIT)


async def _ended(state: ServerState, deadline: float) -> None:
    """Ends connections: idle ones at once, others with their answer, or at the deadline."""
    for connection in list(state.connections):
        try:
            connection.shutdown()
        except Exception:  # the possible errors of uvicorn depend on the data of the client
            cast("Connection", connection).transport.abort()
    tasks = list(state.tasks)
    if tasks:
        _, late = await asyncio.wait(tasks, timeout=max(deadline - time.monotonic(), 0.0))
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=0.1)
    for connection in list(state.connections):
        cast("Connection", connection).transport.abort()
    await _rounds()


async def _rounds() -> None:
    """Lets the loop make or end transports."""
    for _ in range(_ROUNDS):
        await asyncio.sleep(0)


def _context(tls: Tls) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(tls.certificate, tls.key)
    except (OSError, ValueError) as error:
        raise TelemetryError(f"{tls.certificate} with {tls.key} is no certificate: {error}") from None
    return context


def _is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _bound(address: Address) -> socket.socket:
    """A listening socket at the address or the next port that is free, with a warning then."""
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise TelemetryError(f"{address}: the host is not known: {error.strerror}") from None
    family, _, _, _, place = found[0]
    ports = [address.port]
    if address.port:
        ports += [*range(address.port + 1, min(address.port + _NEXT_PORTS, 0xFFFF) + 1), 0]
    for port in ports:
        one = socket.socket(family, socket.SOCK_STREAM)
        try:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, address.host != "::")
            one.bind((place[0], port, *place[2:]))
            # Another server may have bound the port, and listens first.
            one.listen(_BACKLOG)
        except OSError as error:
            one.close()
            if error.errno == errno.EADDRINUSE and port:
                continue
            raise TelemetryError(f"{address._replace(port=port)} cannot be bound: {error.strerror}") from None
        if address.port and port != address.port:
            _log.warning("%s is taken; what is served there is at port %d", address, one.getsockname()[1])
        one.setblocking(False)
        return one
    raise TelemetryError(f"{address} cannot be bound: no port is free")
