"""Requests of a rank's program and their answers: about snapshots, and to handlers of other wheels. The other end is a `ProgramLink`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from monarch.actor import MonarchError
from monarch.extension.channel import AsyncChannel, Channel, Message
from monarch.extension.program import MAX_BLOB_BYTES, Program, ProgramHandlers
from monarch.spmd.errors import SPMDError
from monarch.spmd.program_socket import ProgramSocket

Request = Mapping[str, Any]


class Requests:
    """Takes requests on the running loop. `answer` answers requests without a field `to`; its errors go back as texts.

    An `SPMDError` goes back with its code.
    """

    def __init__(self, answer: Callable[[Request], Awaitable[dict[str, Any]]], program: Program) -> None:
        self._answer = answer
        self._program = program
        self._tasks: set[asyncio.Task[None]] = set()
        self._channels: set[AsyncChannel] = set()
        self._socket = ProgramSocket(self._begin, MAX_BLOB_BYTES)
        self._socket.listen()

    @property
    def address(self) -> str:
        """The name of the socket."""
        return self._socket.address

    def end(self) -> None:
        """Ends all connections: the program has ended. Saves that it has begun go on."""
        self._socket.close()
        for channel in list(self._channels):
            channel.end("the program has ended")

    def close(self) -> None:
        """Ends all connections, and what is being done for them."""
        for task in self._tasks:
            task.cancel()
        self.end()

    def _begin(self, connection: Channel) -> None:
        handlers = ProgramHandlers(self._program)

        def take(message: Message) -> None:
            task = asyncio.get_running_loop().create_task(self._serve(channel, message, handlers))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        def ended(_: str) -> None:
            self._channels.discard(channel)
            handlers.close()

        channel = AsyncChannel(connection, take, ended)
        self._channels.add(channel)

    async def _serve(self, channel: AsyncChannel, request: Message, handlers: ProgramHandlers) -> None:
        if "to" in request.head:
            channel.answer(request, *await handlers.answer(request))
            return
        try:
            answer = await self._answer(request.head)
        except (MonarchError, OSError, LookupError, TypeError, ValueError, ArithmeticError) as error:
            answer = {"error": str(error) or type(error).__name__}
            if isinstance(error, SPMDError):
                answer["code"] = error.code
        channel.answer(request, answer)
