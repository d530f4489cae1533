"""Requests of a rank's program about snapshots, and their answers. The program's end of the channel is in `snapshot_link.py`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from monarch.actor import MonarchError
from monarch.extension.channel import AsyncChannel, Channel, Message
from monarch.spmd.errors import SPMDError
from monarch.spmd.program_socket import ProgramSocket

Request = Mapping[str, Any]


class Requests:
    """Takes requests on the running loop, and has each answered by `answer`; its errors go back as texts.

    An `SPMDError` goes back with its code.
    """

    def __init__(self, answer: Callable[[Request], Awaitable[dict[str, Any]]]) -> None:
        self._answer = answer
        self._tasks: set[asyncio.Task[None]] = set()
        self._channels: set[AsyncChannel] = set()
        self._socket = ProgramSocket(self._begin)
        self._socket.listen()

    @property
    def address(self) -> str:
        """The name of the socket."""
        return self._socket.address

    def close(self) -> None:
        """Ends all connections."""
        self._socket.close()
        for task in self._tasks:
            task.cancel()
        for channel in list(self._channels):
            channel.end("the run has ended")

    def _begin(self, connection: Channel) -> None:
        def take(message: Message) -> None:
            task = asyncio.get_running_loop().create_task(self._serve(channel, message))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        channel = AsyncChannel(connection, take, lambda _: self._channels.discard(channel))
        self._channels.add(channel)

    async def _serve(self, channel: AsyncChannel, request: Message) -> None:
        try:
            answer = await self._answer(request.head)
        except (MonarchError, OSError, LookupError, TypeError, ValueError, ArithmeticError) as error:
            answer = {"error": str(error) or type(error).__name__}
            if isinstance(error, SPMDError):
                answer["code"] = error.code
        channel.answer(request, answer)
