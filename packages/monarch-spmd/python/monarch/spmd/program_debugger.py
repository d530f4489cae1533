"""`breakpoint()` in the program of a rank: pdb, whose input and output go through a channel to the actor beside the program.

It is loaded from its file with the first breakpoint, after those of `ThreadPdb` and `Channel`, and imports nothing else of Monarch: the
program's `sys.path` makes no difference. `breakpoints.py` has the other end. Each thread that stands is a session, from its breakpoint to
the last `continue`.
"""

from __future__ import annotations

import os
import socket
import sys
from _thread import get_ident
from bdb import BdbQuit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

    from monarch.extension.channel import Channel
    from monarch.extension.debug import Terminal, ThreadPdb, sessions
else:
    # `start_program.py` has loaded the modules from their files.
    from monarch_channel import Channel
    from monarch_thread_pdb import Terminal, ThreadPdb, sessions

# Modules with frames between the begin of a thread and the program. The file that starts the program has one, too.
_LAUNCHERS = ("runpy", "threading")
_STARTER = os.path.join(os.path.dirname(__file__), "start_program.py")
# The characters of one piece of a text, and of an incomplete line that is sent.
_PIECE = 8192


def stop_at(frame: FrameType, address: str, *, header: str | None = None, commands: Any = None) -> None:
    """Stops the calling thread in `frame`, at its next line."""
    session = sessions.get(get_ident())
    if isinstance(session, ProgramDebugger) and session.is_busy:
        session.message("*** breakpoint() in a command of the debugger: passed over")
        return
    if session is None:
        try:
            session = ProgramDebugger(address)
        except OSError as error:
            print(f"monarch: breakpoint() is passed over, the debugger cannot be reached: {error.strerror}", file=sys.stderr)
            return
    if header is not None:
        session.message(header)
    session.rcLines.extend(commands or ())
    # The last call: the debugger would stop in any later call.
    session.set_trace(frame)


class ProgramDebugger(ThreadPdb):
    """The pdb of one thread of a program."""

    cannot_run = "the program of a rank cannot be run again from here"

    def __init__(self, address: str) -> None:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect("\0" + address)
        except OSError:
            connection.close()
            raise
        self._channel = Channel(connection, max_blob=0)
        # Whether a command is being carried out.
        self.is_busy = False
        self._place: tuple[str, str, int] = ("", "", 0)
        super().__init__(ProgramTerminal(self))

    def first_frame(self, frame: FrameType) -> FrameType:
        return _outermost(frame)

    def setup(self, f: FrameType | None, tb: Any) -> Any:
        stop = super().setup(f, tb)
        if self.stack:
            frame, line = self.stack[self.curindex]
            self._place = frame.f_code.co_name, frame.f_code.co_filename, line
        return stop

    def trace_dispatch(self, frame: FrameType, event: str, arg: Any) -> Any:
        try:
            return super().trace_dispatch(frame, event, arg)
        except BdbQuit:
            raise BdbQuit("the program was quit in the debugger") from None

    # ---- what it reads and writes

    def onecmd(self, line: str) -> Any:
        self.is_busy = True
        try:
            return super().onecmd(line)
        finally:
            self.is_busy = False

    def ask(self, text: str, prompt: str) -> str | None:
        self._show(text)
        function, path, number = self._place
        self._send({"prompt": prompt, "function": function, "path": path, "line": number})
        return self._answer()

    def write(self, text: str) -> None:
        self.written += text
        end = self.written.rfind("\n") + 1
        if len(self.written) > _PIECE:
            end = end or len(self.written)
            text, self.written = self.written[:end], self.written[end:]
            self._show(text)

    def flush(self) -> None:
        """Output of a command that goes on, line by line; the prompt goes with the question for its line."""
        end = self.written.rfind("\n") + 1
        text, self.written = self.written[:end], self.written[end:]
        self._show(text)

    def _show(self, text: str) -> None:
        for begin in range(0, len(text), _PIECE):
            self._send({"text": text[begin : begin + _PIECE]})

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self._channel.send(message)
        except OSError:  # the code that waits for a line notices it
            return

    def _answer(self) -> str | None:
        try:
            return self._channel.take().head.get("line")
        except OSError:
            return None

    # ---- how it ends

    def end(self) -> None:
        """Ends the session and its connection."""
        super().end()
        text, self.written = self.written, ""
        self._show(text)
        self.let_go()

    def let_go(self) -> None:
        self._channel.close()


class ProgramTerminal(Terminal):
    """The terminal of a session. Output of a thread whose session is over passes through."""

    def here(self) -> ThreadPdb | None:
        session = super().here()
        return None if session is None or session.over else session

    def flush(self) -> None:
        session = self.here()
        if isinstance(session, ProgramDebugger):
            session.flush()


def _outermost(frame: FrameType) -> FrameType:
    """The program's first frame in this thread."""
    frames = [frame]
    while (below := frames[-1].f_back) is not None:
        frames.append(below)
    while len(frames) > 1 and (frames[-1].f_code.co_filename == _STARTER or frames[-1].f_globals.get("__name__") in _LAUNCHERS):
        frames.pop()
    return frames[-1]


def _forget() -> None:
    """In a forked child: the sessions are those of its parent."""
    sys.settrace(None)
    for session in sessions.values():
        if isinstance(session, ProgramDebugger):
            session.let_go()
    sessions.clear()


os.register_at_fork(after_in_child=_forget)
