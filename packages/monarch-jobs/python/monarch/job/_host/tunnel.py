"""The two ends of forwarded connections: an actor that listens, an actor that dials, and what they have in common.

Each end reads its socket and calls the other end with the bytes; the answer comes when the other socket has taken them. So many bytes may
be unanswered and no more, so a reader that does not read stops the writer at the other end, and memory is bounded: by `_ALL` for the
connections of an actor together, and a read for each of them.
"""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import socket
import struct
from collections import deque
from typing import TYPE_CHECKING, Any

from monarch.actor import Actor, MonarchError, concurrent_endpoint

if TYPE_CHECKING:
    from monarch.actor import Future

_READ = 256 << 10
# Unanswered bytes per direction: the most of one connection, and of all together, of which each may have one read.
_WINDOW, _ALL = 2 << 20, 64 << 20
_BACKLOG = 4096
_ABORT = struct.pack("ii", 1, 0)
_FULL = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Connection:
    """One end of one connection."""

    def __init__(self, end: TunnelEnd, number: int, sock: socket.socket, peer: Any) -> None:
        self.end = end
        self.number = number
        self.sock = sock
        self.peer = peer
        self.writing = asyncio.Lock()
        # Whether reading has ended, and whether writing has.
        self.read_over = self.write_over = False
        self.is_open = True
        self.task: asyncio.Task[None] | None = None
        sock.setblocking(False)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def begin(self) -> None:
        self.task = asyncio.get_running_loop().create_task(self._pump())

    async def _pump(self) -> None:
        """From the socket to the other end."""
        loop = asyncio.get_running_loop()
        sent: deque[tuple[Future[bool], int]] = deque()
        unanswered = 0
        try:
            while True:
                data = await loop.sock_recv(self.sock, _READ)
                if not data:
                    break
                sent.append((self.peer.data.call_one(self.number, data), len(data)))
                unanswered += len(data)
                while sent and unanswered > self.end.window():
                    answer, size = sent.popleft()
                    unanswered -= size
                    if not await answer:
                        raise ConnectionResetError
            # This call comes in order, after all data.
            await self.peer.finish.call_one(self.number)
        except (OSError, MonarchError):
            self.abort()
            self._send_eof()
            return
        self.read_over = True
        self._close_if_over()

    async def write(self, data: bytes) -> bool:
        """From the other end to the socket; false if the connection takes no more."""
        async with self.writing:
            try:
                await asyncio.get_running_loop().sock_sendall(self.sock, data)
            except (OSError, ValueError):
                self.abort()
                return False
        return True

    async def finish(self) -> None:
        """The other end has nothing more."""
        async with self.writing:
            if self.is_open:
                try:
                    self.sock.shutdown(socket.SHUT_WR)
                except OSError:  # the whole connection has ended
                    pass
                self.write_over = True
        self._close_if_over()

    def abort(self) -> None:
        """Ends it at once; the connected program sees a reset."""
        if self.is_open:
            try:
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
            except OSError:
                pass
            self.close()

    def close(self) -> None:
        if not self.is_open:
            return
        self.is_open = False
        if self.task is not None and self.task is not asyncio.current_task():
            self.task.cancel()
        loop = asyncio.get_running_loop()
        # A write that waits on this socket must not wait for ever on its number.
        loop.remove_reader(self.sock)
        loop.remove_writer(self.sock)
        self.sock.close()
        self.end.forget(self)

    def _close_if_over(self) -> None:
        if self.read_over and self.write_over:
            self.close()

    def _send_eof(self) -> None:
        try:
            self.peer.abort.broadcast(self.number)
        except MonarchError:  # the other end is gone
            return


class TunnelEnd(Actor):
    """What both ends have: their connections, by the number that the listening end gave them."""

    _is_system_actor = True

    def __init__(self) -> None:
        self.connections: dict[int, Connection] = {}
        self.one_closed = asyncio.Event()
        _raise_descriptor_limit()

    def window(self) -> int:
        return max(_READ // 4, min(_WINDOW, _ALL // max(1, len(self.connections))))

    def forget(self, connection: Connection) -> None:
        self.connections.pop(connection.number, None)
        self.one_closed.set()

    @concurrent_endpoint
    async def data(self, number: int, data: bytes) -> bool:
        """Bytes of a connection, answered when they are on their way to the program that is connected here."""
        connection = self.connections.get(number)
        return connection is not None and await connection.write(data)

    @concurrent_endpoint
    async def finish(self, number: int) -> None:
        """The other side of a connection will send nothing more."""
        connection = self.connections.get(number)
        if connection is not None:
            await connection.finish()

    @concurrent_endpoint
    async def abort(self, number: int) -> None:
        """The other side of a connection is gone."""
        connection = self.connections.get(number)
        if connection is not None:
            connection.abort()

    async def __cleanup__(self, exc: Exception | None) -> None:
        for connection in list(self.connections.values()):
            connection.abort()


class Dialer(TunnelEnd):
    """Connects to a port of its own machine, for each connection that the listening end has."""

    @concurrent_endpoint
    async def open(self, number: int, port: int, listener: Any) -> str | None:
        """Why there is no connection, if there is none."""
        try:
            sock = await _connected(port)
        except OSError as e:
            return os.strerror(e.errno) if e.errno else str(e)
        connection = self.connections[number] = Connection(self, number, sock, listener)
        connection.begin()
        return None


class Listener(TunnelEnd):
    """Listens, and has what connects dialled at the other end."""

    def __init__(self) -> None:
        super().__init__()
        self.sockets: list[socket.socket] = []
        self.accepting: set[asyncio.Task[None]] = set()
        self.count = 0

    @concurrent_endpoint
    async def listen(self, address: str, own: Any, dialer: Any, port: int, is_shared: bool = False) -> str:
        """Listens from now on; the address, with the port that was chosen in place of 0. Others may listen there if it is shared."""
        sock = _listening(address, is_shared)
        self.sockets.append(sock)
        host, number = sock.getsockname()[:2]
        loop = asyncio.get_running_loop()
        self.accepting.add(loop.create_task(self._accept(sock, own, dialer, port)))
        return f"[{host}]:{number}" if ":" in host else f"{host}:{number}"

    async def _accept(self, sock: socket.socket, own: Any, dialer: Any, port: int) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(sock)
            except OSError as e:
                if e.errno in _FULL and self.connections:
                    self.one_closed.clear()
                    await self.one_closed.wait()
                    continue
                if e.errno == errno.ECONNABORTED:
                    continue
                self.logger.error("no connection can be accepted any more: %s", e)
                return
            self.count += 1
            # The connection is registered before the other end can answer.
            connection = self.connections[self.count] = Connection(self, self.count, accepted, dialer)
            connection.task = loop.create_task(self._dial(connection, own, dialer, port))

    async def _dial(self, connection: Connection, own: Any, dialer: Any, port: int) -> None:
        try:
            refused = await dialer.open.call_one(connection.number, port, own)
        except MonarchError as e:
            refused = str(e).partition("\n")[0]
        if refused is None:
            connection.begin()
            return
        self.logger.warning("connection closed: port %d at the other end: %s", port, refused)
        connection.close()

    async def __cleanup__(self, exc: Exception | None) -> None:
        for task in self.accepting:
            task.cancel()
        for sock in self.sockets:
            asyncio.get_running_loop().remove_reader(sock)
            sock.close()
        await super().__cleanup__(exc)


async def _connected(port: int) -> socket.socket:
    """To whatever listens on this port of this machine."""
    first: OSError | None = None
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        try:
            sock = socket.socket(family, socket.SOCK_STREAM)
        except OSError as e:  # no IPv6 here
            first = first or e
            continue
        try:
            sock.setblocking(False)
            await asyncio.get_running_loop().sock_connect(sock, (host, port))
        except BaseException as e:
            sock.close()
            if not isinstance(e, OSError):
                raise
            first = first or e
            continue
        return sock
    assert first is not None
    raise first


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of `port`, `:port`, `host:port` or `[host]:port`; the host is the loopback if there is none."""
    host, _, port = text.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"invalid address '{text}': expected port, :port or host:port")
    return host or "127.0.0.1", int(port)


def _listening(address: str, is_shared: bool) -> socket.socket:
    host, port = parse_address(address)
    family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_shared and port:
            # Only sockets of the same user that all set this option share a port; the port of any other program stays taken.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(place)
        sock.listen(_BACKLOG)
        sock.setblocking(False)
    except OSError as e:
        sock.close()
        raise OSError(e.errno, f"cannot listen on {address}: {e.strerror}") from None
    return sock


def _raise_descriptor_limit() -> None:
    """Each connection takes one; the usual limit is there for programs that cannot handle more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            return
