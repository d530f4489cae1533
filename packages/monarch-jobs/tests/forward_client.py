"""The program's end of a forwarded port."""

from __future__ import annotations

import socket

from monarch.job.kubernetes.access.forward import Forward


def connected(forward: Forward, seconds: float = 60.0) -> socket.socket:
    """A connection to the local port; a read fails after so many seconds."""
    made = socket.create_connection(("127.0.0.1", forward.status()["local"]), 10)
    made.settimeout(seconds)
    return made


def read(sock: socket.socket, size: int) -> bytes:
    """Exactly so many bytes."""
    parts: list[bytes] = []
    while size:
        part = sock.recv(min(size, 1 << 20))
        assert part, "the connection has ended"
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
