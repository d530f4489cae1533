"""A channel on the event loop of the daemon: requests with answers in both directions, and one end that is noticed once."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable
from typing import Any

from monarch.fs._daemon.error_message import error_of
from monarch.fs._daemon.socket_messages import Channel, ChannelError, Head, Message


class PeerGone(ConnectionError):
    """The other end of a channel has ended; what was asked has no answer."""


class AsyncChannel:
    """Reads as soon as it is made. `on_message` gets what is no answer; `on_end` the reason, once."""

    def __init__(self, channel: Channel, on_message: Callable[[Message], None], on_end: Callable[[str], None]) -> None:
        self._channel, self._on_message, self._on_end = channel, on_message, on_end
        self._loop = asyncio.get_running_loop()
        self._calls: dict[int, asyncio.Future[Message]] = {}
        self._numbers = itertools.count(1)
        self._writing = False
        self.open = True
        self._loop.add_reader(channel.fileno(), self._readable)

    def send(self, head: Head, blob: bytes = b"") -> None:
        """Sends, or queues; nothing happens when the channel has ended."""
        if not self.open:
            return
        try:
            self._channel.queue(head, blob)
        except ChannelError as e:
            self.end(str(e))
            return
        if not self._writing:
            self._writable()

    async def request(self, head: Head, blob: bytes = b"", path: str = "") -> Message:
        """The answer; what the peer raised is raised, and `PeerGone` when the peer ends first."""
        if not self.open:
            raise PeerGone("the connection has ended")
        number = next(self._numbers)
        future = self._calls[number] = self._loop.create_future()
        try:
            self.send(head | {"call": number}, blob)
            message = await future
        finally:
            self._calls.pop(number, None)
        error: dict[str, Any] | None = message.head.get("error")
        if error is not None:
            raise error_of(error, path)
        return message

    def end(self, reason: str) -> None:
        """Closes; calls under way fail."""
        if not self.open:
            return
        self.open = False
        self._loop.remove_reader(self._channel.fileno())
        if self._writing:
            self._loop.remove_writer(self._channel.fileno())
        self._channel.close()
        for future in self._calls.values():
            if not future.done():
                future.set_exception(PeerGone(reason))
        self._on_end(reason)

    def _writable(self) -> None:
        try:
            done = self._channel.flush()
        except ChannelError as e:
            self.end(str(e))
            return
        if done and self._writing:
            self._writing = False
            self._loop.remove_writer(self._channel.fileno())
        elif not done and not self._writing:
            self._writing = True
            self._loop.add_writer(self._channel.fileno(), self._writable)

    def _readable(self) -> None:
        try:
            messages = self._channel.receive()
        except ChannelError as e:
            self.end(str(e))
            return
        for message in messages:
            call = message.head.get("call")
            if message.head.get("op") == "answer":
                future = self._calls.get(call) if isinstance(call, int) else None
                if future is not None and not future.done():
                    future.set_result(message)
                for fd in message.descriptors:
                    os.close(fd)
            elif self.open:
                self._on_message(message)
