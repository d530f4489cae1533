"""Framed messages on a Unix socket, between processes of one machine: requests of clients, services and their helper processes.

A message is a head (a JSON object), a blob (bytes) and possibly descriptors. A frame has a prefix with a mark, the number of descriptors
and both lengths. JSON is slower than a binary format; the heads are small, and what is large travels as the blob, uncopied on its way out.

What always holds: lengths are checked before anything is kept; no call blocks but `send` and `take`, which have a limit; what the socket
does not take is queued up to a limit, after which the peer is given up; the end of the peer is a `ChannelEnded`, anything else that is
wrong with it a `ChannelError`.

This file imports the standard library only, and runs on CPython 3.9: an interpreter without Monarch loads it by its path.
"""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import threading
import time
from collections import deque
from typing import Any, NamedTuple, cast

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

# For an interpreter without Monarch.
CHANNEL_FILE = __file__
# The fields of a message.
Head = dict[str, Any]

_PREFIX = struct.Struct("<4sBIQ")
_MARK = b"MCH1"
_CREDENTIALS = struct.Struct("3i")
# More than the status of a thousand mounts, or ten thousand lines of a log.
MAX_HEAD_BYTES = 16 << 20
# The default limit of a blob. A table of a file system has about 100 bytes an entry: room for ten million entries.
MAX_BLOB_BYTES = 1 << 30
# The most queued bytes beyond the largest blob.
_QUEUE_BYTES = 256 << 20
_RECEIVE_BYTES = 1 << 20
_MAX_DESCRIPTORS = 4
# Seconds without a byte after which a peer is given up that has begun a message, or that reads nothing.
STALL_SECONDS = 10.0


class ChannelError(ConnectionError):
    """The peer does not read, is another user's, or has sent something malformed; the text has which."""


class ChannelEnded(ChannelError):
    """The peer has ended, or has closed the connection, between two messages."""


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

    @property
    def is_within(self) -> bool:
        """Whether a message has begun."""
        return bool(self._bytes)

    def feed(self, data: bytes | memoryview) -> list[tuple[Head, bytes, int]]:
        """Head, blob and number of descriptors of the messages that are complete now."""
        self._bytes += data
        found: list[tuple[Head, bytes, int]] = []
        start = 0
        while len(self._bytes) - start >= _PREFIX.size:
            mark, descriptors, head_size, blob_size = _PREFIX.unpack_from(self._bytes, start)
            if mark != _MARK or descriptors > _MAX_DESCRIPTORS or head_size > MAX_HEAD_BYTES or blob_size > self._max_blob:
                raise ChannelError(f"malformed prefix of a message: mark {mark!r}, head of {head_size} bytes, blob of {blob_size} bytes")
            body = start + _PREFIX.size
            end = body + head_size + blob_size
            if len(self._bytes) < end:
                break
            view = memoryview(self._bytes)
            head_bytes, blob = bytes(view[body : body + head_size]), bytes(view[body + head_size : end])
            view.release()
            found.append((_head(head_bytes), blob, descriptors))
            start = end
        if start:
            del self._bytes[:start]
        return found


def _head(data: bytes) -> Head:
    try:
        head: Any = json.loads(data)
    except (ValueError, RecursionError) as e:
        raise ChannelError(f"malformed head of a message: {e}") from None
    if not isinstance(head, dict):
        raise ChannelError("malformed head of a message: no object")
    return cast("Head", head)


class Channel:
    """One end of a connection. `queue` and `flush` may be called by any thread, the others by one.

    Args:
        sock: the connected socket; the channel owns it, and makes it nonblocking.
        takes_descriptors: whether descriptors of the peer are accepted.
        max_blob: the largest blob in bytes that is accepted or sent.
        limits_stalls: whether `take` gives a peer up that has begun a message, and sends nothing more of it for 10 s.

    ```python
    import socket

    from monarch.extension.channel import Channel, ChannelEnded

    ours, theirs = map(Channel, socket.socketpair())
    ours.send({"do": "add", "numbers": [1, 2]}, b"data")
    message = theirs.take(timeout=5.0)
    assert message.head["numbers"] == [1, 2] and message.blob == b"data"
    ours.close()
    try:
        theirs.take(timeout=5.0)
    except ChannelEnded as error:
        print(error)
    theirs.close()
    ```
    """

    def __init__(
        self,
        sock: socket.socket,
        *,
        takes_descriptors: bool = False,
        max_blob: int = MAX_BLOB_BYTES,
        limits_stalls: bool = True,
    ) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._takes_descriptors = takes_descriptors
        self._max_blob = max_blob
        self._limits_stalls = limits_stalls
        self._decoder = Decoder(max_blob)
        self._descriptors: list[int] = []
        # Messages that came with the one that `take` has returned.
        self._taken: deque[Message] = deque()
        self._lock = threading.Lock()
        self._out: deque[tuple[memoryview, Sequence[int]]] = deque()
        self._queued = 0

    def fileno(self) -> int:
        """The descriptor of the socket, for pollers."""
        return self._socket.fileno()

    def queue(self, head: Head, blob: bytes | memoryview = b"", descriptors: Sequence[int] = ()) -> None:
        """Adds a message to what is to be sent. The caller flushes, and keeps the descriptors open until that is done.

        Raises:
            ValueError: the message is larger than a peer accepts, or has more than four descriptors.
            ChannelError: the peer has left too much unread.
        """
        if len(descriptors) > _MAX_DESCRIPTORS:
            raise ValueError(f"a message with {len(descriptors)} descriptors, at most {_MAX_DESCRIPTORS} are sent")
        encoded = json.dumps(head, separators=(",", ":")).encode()
        if len(encoded) > MAX_HEAD_BYTES or len(blob) > self._max_blob:
            raise ValueError(f"a message of {len(encoded)} and {len(blob)} bytes is too large")
        with self._lock:
            if self._queued > self._max_blob + _QUEUE_BYTES:
                raise ChannelError(f"the peer has left {self._queued} bytes unread")
            first = memoryview(_PREFIX.pack(_MARK, len(descriptors), len(encoded), len(blob)) + encoded)
            self._out.append((first, descriptors))
            self._queued += len(first)
            if blob:
                self._out.append((memoryview(blob), ()))
                self._queued += len(blob)

    def flush(self) -> bool:
        """Sends what the socket takes; whether all has been sent. `ChannelEnded` where the peer has ended."""
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
                    raise ChannelEnded(f"the connection has ended: {e}") from None
                self._queued -= sent
                if sent == len(data):
                    self._out.popleft()
                else:
                    self._out[0] = (data[sent:], ())
            return True

    def receive(self) -> list[Message]:
        """The messages that are complete now, maybe none; `ChannelEnded` at the end of the connection."""
        try:
            if self._takes_descriptors:
                data, descriptors, _, _ = socket.recv_fds(self._socket, _RECEIVE_BYTES, _MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
                self._descriptors += descriptors
            else:
                data = self._socket.recv(_RECEIVE_BYTES)
        except (BlockingIOError, InterruptedError):
            return []
        except OSError as e:
            raise ChannelEnded(f"the connection has ended: {e}") from None
        if not data:
            if self._decoder.is_within:
                raise ChannelError("the peer has ended the connection within a message")
            raise ChannelEnded("the peer has ended the connection")
        found: list[Message] = []
        for head, blob, count in self._decoder.feed(data):
            # The kernel gives fewer where this process has no free descriptor.
            if count > len(self._descriptors):
                raise ChannelError(f"a message with {count} descriptors, of which {len(self._descriptors)} have arrived")
            found.append(Message(head, blob, self._descriptors[:count]))
            del self._descriptors[:count]
        return found

    def send(self, head: Head, blob: bytes | memoryview = b"", descriptors: Sequence[int] = ()) -> None:
        """Sends a message and waits until the socket has it.

        Raises:
            ValueError: the message is larger than a peer accepts.
            ChannelError: the peer takes no byte for 10 s.
            ChannelEnded: the peer has ended.
        """
        self.queue(head, blob, descriptors)
        left = self._queued
        while not self.flush():
            if not _is_ready(self._socket, select.POLLOUT, STALL_SECONDS) and self._queued == left:
                raise ChannelError(f"the peer takes nothing for {STALL_SECONDS:.0f} s")
            left = self._queued

    def take(self, timeout: float | None = None) -> Message:
        """Waits for the next message.

        Args:
            timeout: seconds for the whole message; None waits until one begins.

        Raises:
            TimeoutError: the time is over.
            ChannelEnded: the peer has ended.
            ChannelError: the peer has sent something malformed, or nothing more of a message for 10 s.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while not self._taken:
            seconds = None if end is None else max(end - time.monotonic(), 0.0)
            if self._decoder.is_within and self._limits_stalls and (seconds is None or seconds > STALL_SECONDS):
                if not _is_ready(self._socket, select.POLLIN, STALL_SECONDS):
                    raise ChannelError(f"the peer sends no more of a message for {STALL_SECONDS:.0f} s")
            elif not _is_ready(self._socket, select.POLLIN, seconds):
                raise TimeoutError(f"no message within {timeout:g} s")
            self._taken += self.receive()
        return self._taken.popleft()

    def peer(self) -> tuple[int, int]:
        """Pid and uid of the process that opened the other end."""
        pid, uid, _ = _CREDENTIALS.unpack(self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        return pid, uid

    def check_peer(self) -> None:
        """`ChannelError` for a peer of another user."""
        _, uid = self.peer()
        if uid != os.geteuid():
            raise ChannelError(f"the peer is of uid {uid}, not {os.geteuid()}")

    def close(self) -> None:
        """Closes the socket, and descriptors that have come and were not taken."""
        self._socket.close()
        left = [*self._descriptors, *(fd for message in self._taken for fd in message.descriptors)]
        self._descriptors = []
        self._taken.clear()
        for fd in left:
            os.close(fd)


def _is_ready(sock: socket.socket, event: int, seconds: float | None) -> bool:
    poll = select.poll()
    poll.register(sock, event)
    return bool(poll.poll(None if seconds is None else seconds * 1000))
