"""Messages between a keeper and its clients: one line of JSON each, on a Unix socket in a private directory.

The socket is reached through a descriptor of the directory, since the path of the directory may be longer than the kernel's limit for the
name of a socket. The mode of the directory keeps other users out, and each end compares the other's uid with its own as well.
"""

from __future__ import annotations

import json
import os
import socket
import stat
import struct
import time
from typing import Any, cast

from monarch.job.errors import CredentialsError

SOCKET = "socket"
# The field of an answer that has the places of hosts which the keeper has lost and whose workers run: the request was not carried out.
SILENT = "silent_hosts"
# Bytes: more than the status of a thousand mounts; a longer line is no message.
MOST_BYTES = 1 << 20
# Seconds for a peer that has begun a line to end it.
LINE_SECONDS = 10.0
_CREDENTIALS = struct.Struct("3i")


class ChannelError(ValueError):
    """The other end has sent what is no message, or is another user's."""


class Channel:
    """One connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._rest = b""
        data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        self.pid, self.uid, _ = _CREDENTIALS.unpack(data)

    def check_peer(self) -> None:
        """`ChannelError` for a peer of another user."""
        if self.uid != os.geteuid():
            raise ChannelError(f"the peer is of uid {self.uid}, not {os.geteuid()}")

    def send(self, message: dict[str, Any]) -> None:
        """`OSError` where the peer is gone or does not read, `ChannelError` for a message that is too large."""
        line = json.dumps(message, default=str).encode() + b"\n"
        if len(line) > MOST_BYTES:
            raise ChannelError(f"a message of {len(line)} bytes, at most {MOST_BYTES} are sent")
        self._connection.settimeout(LINE_SECONDS)
        self._connection.sendall(line)

    def receive(self, seconds: float | None) -> dict[str, Any] | None:
        """The next message, None at the end of the connection; `TimeoutError`, or `ChannelError` for anything else than a JSON object."""
        end = None if seconds is None else time.monotonic() + seconds
        while b"\n" not in self._rest:
            if len(self._rest) > MOST_BYTES:
                raise ChannelError(f"a line of more than {MOST_BYTES} bytes")
            if end is not None and time.monotonic() >= end:
                raise TimeoutError("no message")
            self._connection.settimeout(None if end is None else max(end - time.monotonic(), 0.001))
            try:
                data = self._connection.recv(1 << 16)
            except ConnectionResetError:
                data = b""
            if not data:
                if self._rest:
                    raise ChannelError("the connection ended within a line")
                return None
            if not self._rest and end is None:
                end = time.monotonic() + LINE_SECONDS
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        try:
            found: Any = json.loads(line)
        except (ValueError, RecursionError) as e:
            raise ChannelError(f"not JSON: {e}") from None
        if not isinstance(found, dict):
            raise ChannelError("not a JSON object")
        return cast("dict[str, Any]", found)

    def close(self) -> None:
        self._connection.close()


def opened(folder: str) -> int:
    """A descriptor of the directory; `CredentialsError` unless it is this user's alone."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    found = os.fstat(descriptor)
    if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        os.close(descriptor)
        raise CredentialsError(f"is open to others (uid {found.st_uid}, mode {stat.S_IMODE(found.st_mode):o})", path=folder)
    return descriptor


def listen(folder: int) -> socket.socket:
    """A listening socket in the directory, in the place of one whose process has ended."""
    try:
        os.unlink(SOCKET, dir_fd=folder)
    except FileNotFoundError:
        pass
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listener.bind(f"/proc/self/fd/{folder}/{SOCKET}")
        os.chmod(SOCKET, 0o600, dir_fd=folder)
        listener.listen(64)
    except BaseException:
        listener.close()
        raise
    return listener


def connect(folder: str, seconds: float) -> Channel | None:
    """A connection to the process that listens in the directory; None where no process does."""
    try:
        descriptor = opened(folder)
    except FileNotFoundError:
        return None
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        connection.settimeout(seconds)
        connection.connect(f"/proc/self/fd/{descriptor}/{SOCKET}")
        channel = Channel(connection)
        channel.check_peer()
        return channel
    except (FileNotFoundError, ConnectionRefusedError, BlockingIOError):
        connection.close()
        return None
    except BaseException:
        connection.close()
        raise
    finally:
        os.close(descriptor)
