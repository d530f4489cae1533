"""A channel on an event loop: requests with answers in both directions, and one end that is noticed once.

A request is a message with a number in the field `call`; the message whose field `op` is `answer`, with the same number, is its answer.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from typing import TYPE_CHECKING

from monarch._core.channel.channel import Channel, ChannelError, Message

if TYPE_CHECKING:
    from collections.abc import Callable

    from monarch._core.channel.channel import Head


class PeerGone(ConnectionError):
    """The other end of a channel has ended; what was asked has no answer."""


class AsyncChannel:
    """Reads as soon as it is made, on the running loop.

    Args:
        channel: the connection; this object owns it.
        on_message: gets each message that is no answer.
        on_end: gets the reason of the end, once.

    ```python
    import asyncio
    import socket

    from monarch.extension.channel import AsyncChannel, Channel

    async def main() -> None:
        ours, theirs = socket.socketpair()
        server = AsyncChannel(Channel(theirs), lambda m: server.answer(m, {"sum": sum(m.head["numbers"])}), print)
        client = AsyncChannel(Channel(ours), print, lambda reason: None)
        message = await client.request({"numbers": [1, 2]})
        assert message.head["sum"] == 3
        client.end("done")

    asyncio.run(main())
    ```
    """

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

    def answer(self, request: Message, head: Head, blob: bytes = b"") -> None:
        """Answers a request of the peer."""
        self.send({"op": "answer", "call": request.head.get("call"), **head}, blob)

    async def request(self, head: Head, blob: bytes = b"") -> Message:
        """The answer; `PeerGone` when the peer ends first. A cancelled request's answer is dropped."""
        if not self.open:
            raise PeerGone("the connection has ended")
        number = next(self._numbers)
        future = self._calls[number] = self._loop.create_future()
        try:
            self.send(head | {"call": number}, blob)
            return await future
        finally:
            self._calls.pop(number, None)

    def end(self, reason: str) -> None:
        """Closes; calls under way fail with `reason`."""
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
