"""Framed messages on Unix sockets, between a service, the daemon and its mount servers.

A message is a head (a JSON object), a blob (bytes) and possibly descriptors. A frame has a prefix with a mark and both lengths; lengths
are bounded before anything is kept. A channel never blocks: what the socket does not take is queued, up to a limit, after which the peer
is given up. JSON is slower than a binary format; the heads are small, and what is large travels as the blob, uncopied on its way out.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

_PREFIX = struct.Struct("<4sIQ")
_MARK = b"MFS1"
MAX_HEAD_BYTES = 1 << 20
# A table has about 100 bytes per entry: room for ten million entries.
MAX_BLOB_BYTES = 1 << 30
# The most queued bytes of a peer that does not read: one table, and then some chunks.
MAX_QUEUED_BYTES = MAX_BLOB_BYTES + (256 << 20)
_RECEIVE_BYTES = 1 << 20
_MAX_DESCRIPTORS = 4

Head = dict[str, Any]


class ChannelError(ConnectionError):
    """The peer has ended, does not read, or has sent something malformed; the text has which."""


class Message(NamedTuple):
    """One message; the receiver closes the descriptors."""

    head: Head
    blob: bytes
    descriptors: list[int]


class Decoder:
    """Makes messages from bytes as they come; `ChannelError` for bytes that are no frame."""

    def __init__(self, max_blob: int = MAX_BLOB_BYTES) -> None:
        self._max_blob = max_blob
        self._bytes = bytearray()

    def feed(self, data: bytes | memoryview) -> list[tuple[Head, bytes]]:
        """The messages that are complete now."""
        self._bytes += data
        found: list[tuple[Head, bytes]] = []
        start = 0
        while len(self._bytes) - start >= _PREFIX.size:
            mark, head_size, blob_size = _PREFIX.unpack_from(self._bytes, start)
            if mark != _MARK or head_size > MAX_HEAD_BYTES or blob_size > self._max_blob:
                raise ChannelError(f"malformed prefix of a message: mark {mark!r}, head of {head_size} bytes, blob of {blob_size} bytes")
            body = start + _PREFIX.size
            end = body + head_size + blob_size
            if len(self._bytes) < end:
                break
            view = memoryview(self._bytes)
            head_bytes, blob = bytes(view[body : body + head_size]), bytes(view[body + head_size : end])
            view.release()
            found.append((_head(head_bytes), blob))
            start = end
        if start:
            del self._bytes[:start]
        return found


def _head(data: bytes) -> Head:
    try:
        head = json.loads(data)
    except (ValueError, RecursionError) as e:
        raise ChannelError(f"malformed head of a message: {e}") from None
    if not isinstance(head, dict):
        raise ChannelError("malformed head of a message: no object")
    return cast("Head", head)


class Channel:
    """One end of a connection. `queue` may be called by any thread, `receive` by one."""

    def __init__(self, sock: socket.socket, *, takes_descriptors: bool = False, max_blob: int = MAX_BLOB_BYTES) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._takes_descriptors = takes_descriptors
        self._decoder = Decoder(max_blob)
        self._descriptors: list[int] = []
        self._lock = threading.Lock()
        self._out: deque[tuple[memoryview, Sequence[int]]] = deque()
        self._queued = 0

    def fileno(self) -> int:
        return self._socket.fileno()

    def queue(self, head: Head, blob: bytes | memoryview = b"", descriptors: Sequence[int] = ()) -> None:
        """Adds a message to what is to be sent; `ChannelError` when the peer has left too much unread. The caller flushes."""
        encoded = json.dumps(head, separators=(",", ":")).encode()
        if len(encoded) > MAX_HEAD_BYTES or len(blob) > MAX_BLOB_BYTES:
            raise ValueError(f"a message of {len(encoded)} and {len(blob)} bytes is too large")
        with self._lock:
            if self._queued > MAX_QUEUED_BYTES:
                raise ChannelError(f"the peer has left {self._queued} bytes unread")
            first = memoryview(_PREFIX.pack(_MARK, len(encoded), len(blob)) + encoded)
            self._out.append((first, descriptors))
            self._queued += len(first)
            if blob:
                self._out.append((memoryview(blob), ()))
                self._queued += len(blob)

    def flush(self) -> bool:
        """Sends what the socket takes; whether all has been sent."""
        with self._lock:
            while self._out:
                data, descriptors = self._out[0]
                try:
                    if descriptors:
                        sent = socket.send_fds(self._socket, [data], list(descriptors), socket.MSG_NOSIGNAL)
                    else:
                        sent = self._socket.send(data, socket.MSG_NOSIGNAL)
                except (BlockingIOError, InterruptedError):
                    return False
                except OSError as e:
                    raise ChannelError(f"the connection has ended: {e}") from None
                self._queued -= sent
                if sent == len(data):
                    self._out.popleft()
                else:
                    self._out[0] = (data[sent:], ())
            return True

    def receive(self) -> list[Message]:
        """The messages that are complete now, maybe none; `ChannelError` at the end of the connection."""
        try:
            if self._takes_descriptors:
                data, descriptors, _, _ = socket.recv_fds(self._socket, _RECEIVE_BYTES, _MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
                self._descriptors += descriptors
            else:
                data = self._socket.recv(_RECEIVE_BYTES)
        except (BlockingIOError, InterruptedError):
            return []
        except OSError as e:
            raise ChannelError(f"the connection has ended: {e}") from None
        if not data:
            raise ChannelError("the peer has ended the connection")
        found: list[Message] = []
        for head, blob in self._decoder.feed(data):
            found.append(Message(head, blob, self._descriptors))
            self._descriptors = []
        return found

    def peer(self) -> tuple[int, int]:
        """Pid and uid of the process that opened the other end."""
        pid, uid, _ = struct.unpack("3i", self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return pid, uid

    def close(self) -> None:
        self._socket.close()
        for fd in self._descriptors:
            os.close(fd)
        self._descriptors = []
