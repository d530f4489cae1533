"""Peers that violate the protocol: handmade frames of the wire protocol, and servers that are no workers."""

from __future__ import annotations

import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

MAGIC = b"\xe5monarch"
VERSION, RELEASE = 7, "0.1.0"
PYTHON = "{}.{}".format(*sys.version_info)
OURS = f"{RELEASE} (protocol {VERSION}, Python {PYTHON})"
REQUEST, HELLO, WELCOME = 3, 5, 6
JOIN, CHANNEL = 1, 2
ROUTED = 6


def release(version: int = VERSION, name: str = f"{RELEASE}+python{PYTHON}") -> bytes:
    return MAGIC + struct.pack("<IB", version, len(name)) + name.encode()


def frame(tag: int, body: bytes) -> bytes:
    return struct.pack("<HB", 1 + len(body), tag) + body


def varint(n: int) -> bytes:
    out = bytearray()
    while n > 0x7F:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    return bytes([*out, n])


def opening(kind: int, job: int, greeting: bytes) -> bytes:
    """All bytes that a dialler sends to a worker without encryption."""
    return release() + frame(REQUEST, struct.pack("<BQ", kind, job)) + frame(HELLO, greeting)


def join(job: int, host: int, lease_ms: int = 1000) -> bytes:
    who = b"somebody"
    settings = b"".join(varint(n) for n in (3000, 10_000, lease_ms))
    return opening(JOIN, job, b"\0" + varint(host) + varint(0) + varint(len(who)) + who + settings)


def channel(job: int, host: int, number: int = 0) -> bytes:
    return opening(CHANNEL, job, b"\1" + varint(7) + bytes([number]) + varint(0) + varint(job) + varint(host))


def routed(job: int, host: int, body: bytes) -> bytes:
    inside = bytes([ROUTED]) + struct.pack("<5Q", job, job, host, host, 1) + struct.pack("<I", len(body)) + body
    return struct.pack("<I", len(inside)) + inside


def connect(address: str) -> socket.socket:
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    return socket.create_connection((host, int(port)))


def rest(connection: socket.socket) -> bytes:
    """The bytes that arrive until the other side closes the connection."""
    got = b""
    try:
        while piece := connection.recv(65536):
            got += piece
    except ConnectionResetError:
        pass
    return got


def said(connection: socket.socket, n: int) -> bytes:
    got = b""
    while len(got) < n and (piece := connection.recv(n - len(got))):
        got += piece
    return got


def ask(address: str, what: bytes) -> bytes:
    """Sends bytes and nothing more; returns all bytes of the answer."""
    with connect(address) as connection:
        try:
            connection.sendall(what)
            connection.shutdown(socket.SHUT_WR)
        except OSError:  # the worker has refused already
            pass
        return rest(connection)


@contextmanager
def server(handle: Callable[[socket.socket], None]) -> Iterator[str]:
    """Takes connections and gives each to `handle`, one after the other; yields its address."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    handle(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"tcp://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def memory(pid: int) -> int:
    """Bytes of the process's memory without files."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))


def other_version(connection: socket.socket) -> None:
    speaks(release(77))(connection)


def speaks(preface: bytes, more: bytes = b"") -> Callable[[socket.socket], None]:
    """A server that begins with these bytes."""

    def handle(connection: socket.socket) -> None:
        said(connection, len(release()))
        connection.sendall(preface + more)
        rest(connection)

    return handle
