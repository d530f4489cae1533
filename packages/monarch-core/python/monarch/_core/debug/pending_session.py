"""A session of the debugger, as its controller has it."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from monarch._core.debug.session_info import DebugSessionInfo

# The output of a session since its last input that is kept for a client that attaches later, in characters.
_KEPT = 1 << 16


class PendingSession:
    """The controller's record of a session. The session stands while it waits for a line, else it runs."""

    def __init__(self, id: int, info: DebugSessionInfo) -> None:
        self.id = id
        self.info = info
        self.written: deque[str] = deque()
        self.length = 0
        self.prompt = ""
        self.ended = False
        # The session continues at its next prompt, with its breakpoints cleared.
        self.released = False
        self._reader: asyncio.Future[str | None] | None = None
        # Called with the output of the session, and with an empty text when the session stands or ends.
        self.listener: Callable[[str], None] | None = None
        # The task that waits for the end of the session's process.
        self.watch: asyncio.Task[None] | None = None

    @property
    def stands(self) -> bool:
        return self._reader is not None

    def write(self, text: str) -> None:
        if text:
            self.written.append(text)
            self.length += len(text)
            while self.length > _KEPT and len(self.written) > 1:
                self.length -= len(self.written.popleft())
            self._notify(text)

    async def ask(self, prompt: str) -> str | None:
        if self.released:
            return None
        self.prompt = prompt
        self._reader = asyncio.get_running_loop().create_future()
        self._notify("")
        return await self._reader

    def answer(self, line: str | None) -> None:
        """Gives pdb a line; None makes the session clear its breakpoints and continue."""
        reader, self._reader = self._reader, None
        assert reader is not None
        self.written.clear()
        self.length = 0
        reader.set_result(line)

    def release(self) -> None:
        self.released = True
        if self.stands:
            self.answer(None)

    def end(self) -> None:
        self.ended = True
        if self.stands:
            # The process of the session has ended: no process gets this answer.
            self.answer(None)
        if self.watch is not None:
            self.watch.cancel()
        self._notify("")

    def _notify(self, text: str) -> None:
        if self.listener is not None:
            self.listener(text)
