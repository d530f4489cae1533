"""The debug controller: an actor in the client that has every session of the job and serves the one client of the debugger."""

from __future__ import annotations

import asyncio
import builtins
from typing import TYPE_CHECKING, Any

from monarch._core.call.actor import Actor, concurrent_endpoint, endpoint
from monarch._core.call.future import new_future
from monarch._core.debug.pending_session import PendingSession
from monarch._core.debug.session_info import DebugSessionInfo, table
from monarch._core.process.current import current_process

if TYPE_CHECKING:
    from monarch._core.debug.server import DebugServer

NAME = "debug_controller"


class DebugController(Actor):
    """Holds the sessions. `wait_pending_session` and `list` are for users; sessions call the other endpoints."""

    _is_system_actor = True

    def __init__(self) -> None:
        self.sessions: dict[int, PendingSession] = {}
        self.server: DebugServer | None = None
        self._changed: asyncio.Condition | None = None

    @concurrent_endpoint
    async def wait_pending_session(self) -> None:
        """Returns when there is a session."""
        await self._until(1)

    @concurrent_endpoint
    async def wait_pending_sessions(self, count: int) -> None:
        """Returns when `count` sessions stand."""
        await self._until(count)

    @endpoint
    async def list(self, print_output: bool = True) -> builtins.list[DebugSessionInfo]:
        """All sessions, by actor and rank; also printed if `print_output`."""
        found = self.infos()
        if print_output:
            print(table(found), end="", flush=True)
        return found

    @endpoint
    async def serve(self) -> tuple[str, int]:
        """Opens the server unless it is open; gives its address."""
        server = await self._serve()
        return server.host, server.port

    # ---- calls of sessions

    @endpoint
    async def open_session(self, id: int, info: DebugSessionInfo, proc: int) -> tuple[str, bool]:
        """The instructions for reaching the server, and whether an older session of that actor and rank exists."""
        server = await self._serve()
        taken = self.find(info.actor_name, info.rank) is not None
        session = self.sessions[id] = PendingSession(id, info)
        self._watch(session, proc)
        # The text appears in the process of the session, which may be on another host than the server.
        here = current_process().host
        return server.how() + (f", on {here}" if info.hostname != here else ""), taken

    @concurrent_endpoint
    async def prompt(self, id: int, place: tuple[str | None, int | None], text: str, prompt: str) -> str | None:
        """The next line for a session; None if the session must clear its breakpoints and continue."""
        session = self.sessions[id]
        info = session.info
        session.info = DebugSessionInfo(info.actor_name, info.rank, info.coords, info.hostname, *place)
        session.write(text)
        waiting = asyncio.ensure_future(session.ask(prompt))
        await self._notify()
        return await waiting

    @endpoint
    async def write(self, id: int, text: str) -> None:
        session = self.sessions.get(id)
        if session is not None:
            session.write(text)

    @endpoint
    async def close_session(self, id: int, text: str) -> None:
        await self._end(id, text)

    async def __cleanup__(self, exc: Exception | None) -> None:
        if self.server is not None:
            await self.server.close()

    # ---- calls of the server

    def infos(self) -> builtins.list[DebugSessionInfo]:
        return sorted((s.info for s in self.sessions.values()), key=lambda info: (info.actor_name, info.rank))

    def of_actor(self, name: str) -> dict[int, PendingSession]:
        """The sessions of an actor by rank, the oldest session of each."""
        found: dict[int, PendingSession] = {}
        for session in self.sessions.values():
            if session.info.actor_name == name:
                found.setdefault(session.info.rank, session)
        return found

    def find(self, name: str, rank: int) -> PendingSession | None:
        return self.of_actor(name).get(rank)

    # ---- internal

    async def _serve(self) -> DebugServer:
        if self.server is None:
            from monarch._core.debug.server import DebugServer

            server = DebugServer(self)
            await server.open()
            self.server = server
        return self.server

    async def _until(self, count: int) -> None:
        await self._serve()
        self._changed = self._changed or asyncio.Condition()
        async with self._changed:
            await self._changed.wait_for(lambda: sum(s.stands for s in self.sessions.values()) >= count)

    async def _notify(self) -> None:
        # The session stands once its task has begun.
        await asyncio.sleep(0)
        if self._changed is not None:
            async with self._changed:
                self._changed.notify_all()

    async def _end(self, id: int, text: str) -> None:
        session = self.sessions.pop(id, None)
        if session is not None:
            session.write(text)
            session.end()
            await self._notify()

    def _watch(self, session: PendingSession, proc: int) -> None:
        """Ends the session with its process, which cannot report its own end."""
        from monarch._core._native.protocol import FIRST_ERROR

        process = current_process()
        if proc == process.uid:
            return
        cell = process.native.cell(FIRST_ERROR, 1, [proc])

        def seen(cell: Any) -> None:
            cell.set_retrieved()

        async def wait() -> None:
            await new_future(cell, seen)
            session.watch = None
            await self._end(session.id, "The process has ended.\n")

        session.watch = asyncio.ensure_future(wait())


def debug_controller() -> DebugController:
    """The controller of the job's debugger, whose server is open from now on.

    `wait_pending_session` and `list` are its endpoints: `debug_controller().list.call_one().get()`. `ValueError` if one of the variables
    `MONARCH_DEBUG_SERVER_HOST`, `_PORT` and `_PROTOCOL` is unusable.
    """
    from monarch._core.errors.errors import ActorError
    from monarch._core.hosts.controller import get_or_spawn_controller

    found = get_or_spawn_controller(NAME, DebugController)
    found.__core__.wait(None)
    controller = found.get()
    served = controller.serve.call_one()
    served.__core__.wait(None)
    try:
        served.get()
    except ActorError as e:
        if isinstance(e.exception, ValueError):
            raise e.exception from None
        raise
    return controller
