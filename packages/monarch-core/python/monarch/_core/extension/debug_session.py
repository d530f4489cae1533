"""A session of the debugger on behalf of a program that is no actor.

The controller in the client has one more session. Its lines and its output go through the process that has opened it; the session ends with
that process. The caller stops the program and transfers its text to that process.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from monarch._core.debug.controller import NAME, DebugController
from monarch._core.debug.session_info import DebugSessionInfo
from monarch._core.hosts.controller import get_or_spawn_controller
from monarch._core.process.current import current_process
from monarch._core.process.identity import new_uid

if TYPE_CHECKING:
    from monarch._core.call.endpoint import Endpoint

# The names of actors that the prompt of the debugger accepts.
_NAME = re.compile(r"[-_a-zA-Z0-9]+")


class ProgramSession:
    """A program at a breakpoint, as `monarch debug` lists it, until `close`. Used on the event loop that has opened it.

    `how` is the command that attaches to it. `is_second`: an older session has the same name and rank, and comes first.
    """

    how: str
    is_second: bool

    def __init__(self, controller: DebugController, id: int, how: str, is_second: bool) -> None:
        self._controller = controller
        self._id = id
        self.how = how
        self.is_second = is_second

    async def ask(self, prompt: str, *, text: str = "", function: str | None = None, line: int | None = None) -> str | None:
        """Shows `text` and the prompt, and waits for a line; None: the program must clear its breakpoints and continue.

        `function` and `line` are the present position of the program. `SupervisionError` if the client is gone.
        """
        return await self._controller.prompt.call_one(self._id, (function, line), text, prompt)

    def write(self, text: str) -> None:
        """Shows text to the client that is attached, now or later. The text is lost if the client is gone."""
        self._send(self._controller.write, text)

    def close(self, text: str = "") -> None:
        """Ends the session, because the program continues or has ended; `text` is the last output."""
        self._send(self._controller.close_session, text)

    def _send(self, endpoint: Endpoint[[int, str], None], text: str) -> None:
        try:
            endpoint.broadcast(self._id, text)
        except RuntimeError as e:  # the task that waits for a line notices the end
            del e


async def open_session(
    name: str, rank: int, coords: Mapping[str, int], *, function: str | None = None, line: int | None = None
) -> ProgramSession:
    """Adds a session to those of the job, and opens the server of the debugger for it if needed.

    `name` and `rank` are the arguments of the debugger's `attach`. `ValueError` for a name with other characters than letters, digits, `-`
    and `_`. `RuntimeError` if the client is gone, `ActorError` if a variable of the debugger is unusable in the client.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"name={name!r}: expected letters, digits, - and _, since `attach` takes it as one word")
    process = current_process()
    info = DebugSessionInfo(name, rank, dict(coords), process.host, function, line)
    controller = await get_or_spawn_controller(NAME, DebugController)
    id = new_uid()
    how, is_second = await controller.open_session.call_one(id, info, process.uid)
    return ProgramSession(controller, id, how, is_second)
