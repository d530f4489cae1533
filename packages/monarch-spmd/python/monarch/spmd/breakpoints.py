"""Breakpoints of a rank's program: from the channel on which the program asks, to the debugger of the job.

The program's end is `program_debugger.py`. It connects for each session. Its messages are output, or a prompt with the place where it
stands, which is answered by a line, or by null: go on. The end of the connection is that of the session.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from monarch.actor import MonarchError
from monarch.extension.channel import AsyncChannel, Channel, Head, Message
from monarch.spmd.program_socket import ProgramSocket

if TYPE_CHECKING:
    from monarch.extension.debug import ProgramSession


class Breakpoints:
    """Listens for the breakpoints of one program. `show` shows a line to the user, `moved` is called when a session begins or ends."""

    def __init__(self, run_id: str, rank: int, coords: Mapping[str, int], show: Callable[[str], None], moved: Callable[[], None]) -> None:
        # A name that the debugger accepts.
        self._name = re.sub(r"[^-_a-zA-Z0-9]", "-", run_id)
        self._rank = rank
        self._coords = coords
        self._show = show
        self._moved = moved
        self._socket = ProgramSocket(self._begin)
        self._connections: set[_Connection] = set()

    @property
    def address(self) -> str:
        """The name of the socket."""
        return self._socket.address

    @property
    def is_standing(self) -> bool:
        """Whether a debugger has hold of the program now."""
        return bool(self._connections)

    def listen(self) -> None:
        """Takes connections of the program; `OSError` where this process has no free descriptor."""
        self._socket.listen()

    def close(self) -> None:
        """Ends all sessions: the program has ended."""
        self._socket.close()
        for connection in list(self._connections):
            connection.close()

    def _begin(self, channel: Channel) -> None:
        self._connections.add(_Connection(self, channel))
        self._moved()

    def end(self, connection: _Connection) -> None:
        """Forgets a connection, which has ended."""
        self._connections.discard(connection)
        self._moved()

    async def open(self, function: str, path: str, line: int) -> ProgramSession:
        # Every rank waits for this import, and few programs stop at breakpoints.
        from monarch.extension.debug import open_session

        session = await open_session(self._name, self._rank, self._coords, function=function, line=line)
        place = f"{path}:{line}" if function == "<module>" else f"{function}() at {path}:{line}"
        self._show(f"breakpoint in rank {self._rank} of {self._name}, {place}; attach with: {session.how}")
        if session.is_second:
            self._show(f"Debug session for rank {self._rank} already exists for {self._name}; this one comes after it")
        return session

    def has_lost_debugger(self, function: str, error: Exception) -> None:
        self._show(f"the debugger cannot be reached, {function} goes on: {error}")


class _Connection:
    """One connection of the program: one session."""

    def __init__(self, breakpoints: Breakpoints, channel: Channel) -> None:
        self._breakpoints = breakpoints
        self._session: ProgramSession | None = None
        # Output from before the first prompt.
        self._text = ""
        # The prompt without an answer. Until it has one, the program sends nothing but its end.
        self._asking: asyncio.Task[None] | None = None
        self._channel = AsyncChannel(channel, self._take, self._ended)

    def close(self) -> None:
        self._channel.end("the program has ended")

    def _take(self, message: Message) -> None:
        try:
            given = _parsed(message.head)
        except ValueError as error:  # the process is no program of this run
            self._channel.end(str(error))
            return
        if isinstance(given, str):
            self._write(given)
        elif self._asking is not None:
            self._channel.end("a second prompt before the answer to the first")
        else:
            self._asking = asyncio.get_running_loop().create_task(self._answer(given))

    def _ended(self, reason: str) -> None:
        if self._asking is not None:
            self._asking.cancel()
        if self._session is not None:
            self._session.close(self._text)
        self._breakpoints.end(self)

    def _write(self, text: str) -> None:
        if self._session is None:
            self._text += text
        else:
            self._session.write(text)

    async def _answer(self, asked: _Prompt) -> None:
        line = await self._ask(asked)
        self._asking = None
        self._channel.send({"line": line})

    async def _ask(self, asked: _Prompt) -> str | None:
        try:
            if self._session is None:
                self._session = await self._breakpoints.open(asked.function, asked.path, asked.line)
            text, self._text = self._text, ""
            return await self._session.ask(asked.prompt, text=text, function=asked.function, line=asked.line)
        except (MonarchError, RuntimeError) as error:
            self._breakpoints.has_lost_debugger(asked.function, error)
            return None


class _Prompt(NamedTuple):
    """The program waits for a command, at this place."""

    prompt: str
    function: str
    path: str
    line: int


def _parsed(fields: Head) -> str | _Prompt:
    """A text that the program writes, or its prompt. `ValueError` for another message: any process of this user may connect."""
    match fields:
        case {"text": str(text)} if len(fields) == 1:
            return _whole(text)
        case {"prompt": str(prompt), "function": str(function), "path": str(path), "line": int(number)} if len(fields) == 4:
            return _Prompt(_whole(prompt), _whole(function), _whole(path), number)
        case _:
            raise ValueError("the message is neither a text nor a prompt")


def _whole(text: str) -> str:
    """The text without halves of characters, which no terminal and no message can have."""
    return text.encode(errors="replace").decode()
