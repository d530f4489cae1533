"""The debugger's end of a TCP connection: one client at a time. A new client replaces the previous one.

A line is read only when the prompt or a standing session wants one. So input that arrives at once has the same effect as input
typed by hand, and its output is in the same order.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections import deque
from typing import TYPE_CHECKING, Protocol

from monarch._core.debug import address as debug_address
from monarch._core.debug import mark as debug_mark
from monarch._core.debug.command import HELP, Attach, Cast, ParseError, parse
from monarch._core.debug.mark import mark, plain
from monarch._core.debug.session_info import table
from monarch._core.process.peer import is_own_peer

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from monarch._core.debug.pending_session import PendingSession
    from monarch._core.debug.session_info import DebugSessionInfo

PROMPT = "monarch_dbg> "
# The longest line of input, in bytes, and the most output that may wait for a client that does not read.
_LINE = 1 << 16
_UNREAD = 16 << 20


class Sessions(Protocol):
    """The sessions that a server shows: those of the debug controller."""

    sessions: dict[int, PendingSession]

    def infos(self) -> list[DebugSessionInfo]: ...
    def of_actor(self, name: str) -> dict[int, PendingSession]: ...


class DebugServer:
    """Listens, and holds the only connection."""

    def __init__(self, controller: Sessions) -> None:
        self.controller = controller
        self.host = ""
        self.port = 0
        self._wanted = 0
        self._moved = False
        self._server: asyncio.Server | None = None
        self._beacon: socket.socket | None = None
        self._connection: DebugConnection | None = None
        self._table = asyncio.Lock()

    async def open(self) -> None:
        """Opens the listening socket; `ValueError` if the variables are unusable."""
        host, self._wanted = debug_address.configured()
        listening, self._moved = debug_address.listen(host, self._wanted)
        self.host, self.port = listening.getsockname()[:2]
        self._server = await asyncio.start_server(self._accept, sock=listening, limit=_LINE)
        self._beacon = debug_address.announce(self.host, self.port)

    def how(self) -> str:
        """The instructions for attaching, for the user."""
        if self._beacon is None or self.port != debug_address.DEFAULT_PORT:
            words = f"monarch debug --port {self.port}"
            return f"{words} (port {self._wanted} was taken)" if self._moved else words
        return "monarch debug"

    async def close(self) -> None:
        if self._beacon is not None:
            self._beacon.close()
        if self._server is not None:
            self._server.close()
        if self._connection is not None:
            await self._connection.close("The job has ended.", orderly=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not await self._is_own(writer.get_extra_info("socket")):
            writer.write(b"refused: not the user of this job\n")
            await _close(writer)
            return
        before, connection = self._connection, DebugConnection(self.controller, reader, writer)
        self._connection = connection
        if before is not None:
            await before.close("Another client has taken over.")
        await connection.run()
        if self._connection is connection:
            self._connection = None

    async def _is_own(self, connection: socket.socket) -> bool:
        known = is_own_peer(connection)
        if known is not None:
            return known
        # The table may be long: one reader at a time, on a thread beside the loop.
        async with self._table:
            return await asyncio.to_thread(debug_address.is_own_by_table, connection)


async def _close(writer: asyncio.StreamWriter) -> None:
    """Closes a connection, even one that the other end has reset: asyncio would print an error that no task retrieves."""
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


class DebugConnection:
    """The connection of one client, from the greeting to its end."""

    def __init__(self, controller: Sessions, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.controller = controller
        self._reader = reader
        self._writer = writer
        self._lines: deque[str] = deque()
        self._at_end = False
        self._interrupted = False
        # Whether the client requested marks.
        self._marks = False
        self._wake = asyncio.Event()
        self._main: asyncio.Task[None] | None = None

    async def run(self) -> None:
        # The greeting comes before any input is read: a client that requests marks gets a second one.
        self._greet()
        pump = asyncio.ensure_future(self._pump())
        self._main = asyncio.ensure_future(self._serve())
        try:
            await self._main
            self._write(mark(debug_mark.END) if self._marks else "", marked=True)
        except (asyncio.CancelledError, ConnectionError):
            pass
        finally:
            pump.cancel()
            await _close(self._writer)

    async def close(self, last: str, orderly: bool = False) -> None:
        self._write(f"\n{last}\n")
        if orderly and self._marks:
            self._write(mark(debug_mark.END), marked=True)
        if self._main is not None:
            self._main.cancel()
        self._writer.close()

    # ---- input and output

    def _write(self, text: str, marked: bool = False) -> None:
        if not text or self._writer.is_closing():
            return
        if self._writer.transport.get_write_buffer_size() > _UNREAD:
            self._writer.transport.abort()
            return
        self._writer.write((text if marked or not self._marks else plain(text)).encode(errors="replace"))

    async def _pump(self) -> None:
        """Reads lines as they arrive, so that Ctrl-C takes effect at once."""
        while True:
            try:
                data = await self._reader.readline()
            except ValueError:  # asyncio has discarded the line
                self._write("Error parsing input: the line is too long\n")
                continue
            except ConnectionError:
                data = b""
            line = data.decode(errors="replace")
            if not data:
                self._at_end = True
            elif line == debug_mark.INTERRUPT:
                self._lines.clear()
                self._interrupted = True
            elif line == debug_mark.HELLO:
                self._marks = True
                self._write(mark(debug_mark.BEGIN), marked=True)
                self._greet()
                self._interrupted = True
            else:
                self._lines.append(line.rstrip("\r\n"))
            self._wake.set()
            if not data:
                return

    def _greet(self) -> None:
        self._write(f"Monarch debugger, process {os.getpid()} ({' '.join(sys.argv)[:200]}); enter help for a list of commands.\n")

    async def _until(self, ready: Callable[[], bool]) -> bool:
        """Waits until `ready`; false if Ctrl-C came first."""
        while not ready():
            if self._interrupted:
                return False
            self._wake.clear()
            await self._wake.wait()
        return not self._interrupted

    async def _line(self, prompt: str, over: Callable[[], bool] = lambda: False) -> str | None:
        """The next line; None at the end of the input, or when `over` holds."""
        while True:
            if self._interrupted:
                self._interrupted = False
                self._write(mark(debug_mark.INTERRUPTED) if self._marks else "\n", marked=True)
            self._write(mark(debug_mark.PROMPT, prompt) if self._marks else prompt, marked=True)
            await self._writer.drain()
            if await self._until(lambda: bool(self._lines) or self._at_end or over()):
                return None if over() or not self._lines else self._lines.popleft()

    # ---- commands

    async def _serve(self) -> None:
        while (line := await self._line(PROMPT)) is not None:
            if not line.strip():
                continue
            try:
                command = parse(line)
                if command == "quit":
                    return
                if command == "help":
                    self._write(HELP)
                elif command == "list":
                    self._write(table(self.controller.infos()))
                elif command == "continue":
                    await self._continue()
                elif isinstance(command, Attach):
                    await self._attach(command)
                elif isinstance(command, Cast):
                    await self._cast(command)
            except ParseError as e:
                self._write(f"Error parsing input: {e}\n")

    async def _continue(self) -> None:
        sessions = list(self.controller.sessions.values())
        for session in sessions:
            session.release()
        self._write(f"{len(sessions)} sessions go on.\n" if len(sessions) != 1 else "1 session goes on.\n")

    def _found(self, actor: str, rank: int) -> PendingSession | None:
        of_actor = self.controller.of_actor(actor)
        if not of_actor:
            self._write(f"No debug sessions for actor {actor}\n")
        elif rank not in of_actor:
            self._write(f"No debug session for rank {rank} for actor {actor}\n")
        return of_actor.get(rank)

    async def _attach(self, command: Attach) -> None:
        session = self._found(*command)
        if session is None:
            return
        name = f"{command.actor} rank {command.rank}"
        self._write(f"Attached to {name}; enter detach to leave it as it is.\n" + "".join(session.written))
        session.listener = self._write_output
        try:
            while not session.ended:
                if not await self._until(lambda: session.stands or session.ended):
                    self._write(f"\nDetached from {name}, which runs.\n")
                    return
                if not session.stands:
                    break
                line = await self._line(session.prompt, over=lambda: session.ended)
                if session.ended:
                    break
                if line is None or line.strip() == "detach":
                    self._write(f"Detached from {name}.\n")
                    return
                session.answer(line)
        finally:
            # Another client may have attached meanwhile.
            if session.listener == self._write_output:
                session.listener = None
        self._write(f"The session of {name} is over.\n")

    def _write_output(self, text: str) -> None:
        self._write(text)
        self._wake.set()

    async def _cast(self, command: Cast) -> None:
        """Sends a command to the ranks, then shows the answers of each rank in order, each line with its rank."""
        of_actor = self.controller.of_actor(command.actor)
        if not of_actor:
            self._write(f"No debug sessions for actor {command.actor}\n")
            return
        for rank in command.ranks.named():
            if rank not in of_actor:
                self._write(f"No debug session for rank {rank} for actor {command.actor}\n")
        chosen = {r: s for r, s in sorted(of_actor.items()) if command.ranks.matches(r, s.info.coords)}
        if not chosen and not command.ranks.named():
            self._write(f"No debug session for these ranks for actor {command.actor}\n")
        for rank, session in list(chosen.items()):
            if not session.stands:
                self._write(f"[{rank}] runs: nothing sent\n")
                del chosen[rank]
            elif command.command != "detach":
                session.listener = self._wake_up
                session.answer(command.command)
        try:
            for rank, session in chosen.items():
                if not await self._until(lambda s=session: s.stands or s.ended):
                    self._write("\nNot all have answered; attach to one to see.\n")
                    return
                self._write("".join(f"[{rank}] {line}\n" for line in "".join(session.written).splitlines()))
                if session.ended:
                    self._write(f"[{rank}] is over\n")
        finally:
            for session in chosen.values():
                if session.listener == self._wake_up:
                    session.listener = None

    def _wake_up(self, text: str) -> None:
        self._wake.set()
