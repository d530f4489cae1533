"""The requests of a program to the proc that runs it, and their answers.

A program that a proc runs, such as a rank of `monarch.spmd.run`, is no member of the job. The proc works for it in the job: it
listens at the abstract socket that `VARIABLE` names, and each message of the program names the handler that answers (`program_handlers`).
A program waits for the imports of this module when it starts: none of asyncio, which is at the other end.
"""

from __future__ import annotations

import os
import pickle
import socket
import threading
from typing import TYPE_CHECKING, Any

from monarch._core.channel.channel import Channel, ChannelEnded, ChannelError, Message
from monarch._core.process.current import known_process

if TYPE_CHECKING:
    from collections.abc import Callable

    from monarch._core.channel.channel import Head

# The environment variable of a program with the name of the socket.
VARIABLE = "MONARCH_PROGRAM"
# Bytes of the largest blob, in both directions: a table of ten million tensors is smaller.
MAX_BLOB_BYTES = 1 << 30


class ProgramLink:
    """The channel from this program to its proc. Any thread may use it. Answers arrive on a thread of its own."""

    def __init__(self, address: str) -> None:
        self.pid = os.getpid()
        # The pid of the proc, 0 before the first connection.
        self.proc_pid = 0
        self._address = address
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._waiting: dict[int, Callable[[Message | OSError], None]] = {}
        self._count = 0
        self._channel: Channel | None = None
        # Of connections so far.
        self._connections = 0

    def connect(self) -> int:
        """The number of the connection, which is made if there is none. The things that a handler has made end with it.

        Raises:
            ConnectionError: the proc has ended, or this process has no free descriptor.
        """
        try:
            with self._sending:
                self._open(None)
                return self._connections
        except OSError as error:
            raise _unanswered(error) from None

    def send(self, head: Head, answered: Callable[[Message | OSError], None], blob: bytes = b"", *, connection: int | None = None) -> None:
        """Sends a request. `answered` gets the answer, or the error of a connection that has ended; it must not wait.

        Args:
            head: the request.
            answered: is called once.
            blob: bytes of the request.
            connection: the only one that may carry it, where the request is about what the handler has made for that connection.
        """
        number = None
        try:
            with self._sending:
                channel = self._open(connection)
                # Only now: the end of an earlier connection must not end this request.
                with self._lock:
                    self._count += 1
                    number = self._count
                    self._waiting[number] = answered
                channel.send({**head, "call": number}, blob)
        except OSError as error:
            if number is None:
                answered(error)
            else:
                self._end(number, error)

    def ask(
        self,
        head: Head,
        blob: bytes = b"",
        *,
        timeout: float | None = None,
        connection: int | None = None,
        is_answered: threading.Event | None = None,
    ) -> Message:
        """The answer to a request, for which this thread waits; `connection` is as for `send`.

        `is_answered` is set when there is an answer, which may be after the time-out.

        Raises:
            TimeoutError: the time is up.
            ConnectionError: the proc has ended.
            Exception: what the handler has raised.
        """
        there = is_answered or threading.Event()
        found: list[Message | OSError] = []

        def answered(answer: Message | OSError) -> None:
            found.append(answer)
            there.set()

        self.send(head, answered, blob, connection=connection)
        if not there.wait(timeout):
            raise TimeoutError(f"no answer within {timeout:g} s")
        return answer_in(found[0])

    def _open(self, connection: int | None) -> Channel:
        """The channel; the caller has `_sending`."""
        if connection is not None and (self._channel is None or connection != self._connections):
            raise ChannelEnded("the connection has ended")
        if self._channel is None:
            self._channel = self._connected()
            self._connections += 1
        return self._channel

    def _connected(self) -> Channel:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect("\0" + self._address)
        except OSError:
            connection.close()
            raise
        # A proc that has stopped in the middle of an answer goes on later: its end would be seen.
        channel = Channel(connection, max_blob=MAX_BLOB_BYTES, limits_stalls=False)
        try:
            # The name is free when the proc has ended, and answers are unpickled.
            channel.check_peer()
        except ChannelError:
            channel.close()
            raise
        self.proc_pid = channel.peer()[0]
        threading.Thread(target=self._listen, args=(channel,), name="monarch-program", daemon=True).start()
        return channel

    def _listen(self, channel: Channel) -> None:
        try:
            while True:
                answer = channel.take()
                self._end(answer.head["call"], answer)
        except OSError as error:
            # The proc has ended, and will answer none of the requests.
            with self._sending:
                channel.close()
                self._channel = None
                with self._lock:
                    left = list(self._waiting)
            for number in left:
                self._end(number, error)

    def _end(self, number: int, answer: Message | OSError) -> None:
        with self._lock:
            answered = self._waiting.pop(number, None)
        if answered is not None:
            answered(answer)


def answer_in(found: Message | OSError) -> Message:
    """The answer; raises the error of the connection, or what the handler has raised."""
    if isinstance(found, OSError):
        raise _unanswered(found) from None
    if found.head.get("raised"):
        error: BaseException = pickle.loads(found.blob)  # of this program's own proc
        raise error
    return found


def _unanswered(error: OSError) -> ConnectionError:
    return ConnectionError(f"the proc of this program does not answer: {error.strerror or error}")


def raised(error: BaseException) -> tuple[Head, bytes]:
    """The answer that `answer_in` raises."""
    try:
        packed = pickle.dumps(error)
    except Exception:  # any kind: an exception may hold what cannot be sent
        packed = pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))
    return {"raised": True}, packed


_lock = threading.Lock()
_link: ProgramLink | None = None


def program_link() -> ProgramLink | None:
    """The link of this process to the proc that runs it; None where it is no such program.

    A proc that was started by a program is a member of the job of that program, and has no link.
    """
    global _link
    address: Any = os.environ.get(VARIABLE)
    process = known_process()
    if not address or (process is not None and not process.is_client):
        return None
    with _lock:
        if _link is None or _link.pid != os.getpid():
            _link = ProgramLink(address)
        return _link
