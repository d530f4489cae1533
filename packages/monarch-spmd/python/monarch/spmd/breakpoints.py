"""Breakpoints of a rank's program: from the socket on which the program asks, to the debugger of the job.

The program's end is `program_debugger.py`. It connects for each session, and sends lines of JSON: output, or a prompt with the place where
it stands, which is answered by a line, or by null: go on. The end of the connection is that of the session.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import socket
import struct
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from monarch.actor import MonarchError

if TYPE_CHECKING:
    from monarch.extension.debug import ProgramSession

# The longest line of the program in bytes: it sends longer texts in pieces.
_LINE = 1 << 20
_UCRED = struct.Struct("3i")


class Breakpoints:
    """Listens for the breakpoints of one program. `show` shows a line to the user, `moved` is called when a session begins or ends.

    The socket has an abstract name, which is gone with this process, and admits this user only.
    """

    def __init__(self, run_id: str, rank: int, coords: Mapping[str, int], show: Callable[[str], None], moved: Callable[[], None]) -> None:
        # A name that the debugger accepts.
        self._name = re.sub(r"[^-_a-zA-Z0-9]", "-", run_id)
        self._rank = rank
        self._coords = coords
        self._show = show
        self._moved = moved
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._count = 0
        self.address = f"monarch-spmd-{os.getpid()}-{os.urandom(8).hex()}"

    @property
    def is_standing(self) -> bool:
        """Whether a debugger has hold of the program now."""
        return self._count > 0

    async def listen(self) -> None:
        listening = socket.socket(socket.AF_UNIX)
        try:
            listening.bind("\0" + self.address)
            self._server = await asyncio.start_unix_server(self._accept, sock=listening, limit=_LINE)
        except BaseException:
            listening.close()
            raise

    def close(self) -> None:
        """Ends all sessions: the program has ended."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        for task in self._tasks:
            task.cancel()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not _is_own(writer.get_extra_info("socket")):
            writer.close()
            return
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._count += 1
        self._moved()
        try:
            await _Link(self, reader, writer).serve()
        except (OSError, ValueError, asyncio.CancelledError):  # the program is gone, or is no process of this run
            pass
        finally:
            self._count -= 1
            self._moved()
            self._tasks.discard(task)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

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


class _Link:
    """One connection of the program: one session."""

    def __init__(self, breakpoints: Breakpoints, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._breakpoints = breakpoints
        self._reader = reader
        self._writer = writer
        self._session: ProgramSession | None = None
        # Output from before the first prompt.
        self._text = ""

    async def serve(self) -> None:
        coming = asyncio.ensure_future(self._reader.readline())
        try:
            while line := await coming:
                message = _parsed(line)
                coming = asyncio.ensure_future(self._reader.readline())
                if isinstance(message, str):
                    self._write(message)
                    continue
                answer = asyncio.ensure_future(self._ask(message))
                # Until the program has an answer, it sends nothing but its end.
                await asyncio.wait((answer, coming), return_when=asyncio.FIRST_COMPLETED)
                if not answer.done():
                    answer.cancel()
                    continue
                self._writer.write(json.dumps(answer.result()).encode() + b"\n")
                await self._writer.drain()
        finally:
            coming.add_done_callback(_looked_at)
            coming.cancel()
            if self._session is not None:
                self._session.close(self._text)

    def _write(self, text: str) -> None:
        if self._session is None:
            self._text += text
        else:
            self._session.write(text)

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


def _parsed(line: bytes) -> str | _Prompt:
    """A text that the program writes, or its prompt. `ValueError` for another message: any process of this user may connect."""
    try:
        fields: Any = json.loads(line)
    except RecursionError:
        raise ValueError("the message is nested too deep") from None
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


def _looked_at(coming: asyncio.Future[bytes]) -> None:
    """Retrieves the error, which would be printed otherwise."""
    if not coming.cancelled():
        coming.exception()


def _is_own(connection: Any) -> bool:
    """Whether the other end belongs to this user."""
    _, uid, _ = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return uid == os.getuid()
