"""`breakpoint()` in the program of a rank: pdb, whose input and output go through a socket to the actor beside the program.

It is loaded from its file with the first breakpoint, and imports nothing of Monarch: what the program has put into `sys.path` makes no
difference. `breakpoints.py` has the other end. Each thread that stands is a session, from its breakpoint to the last `continue`.
"""

from __future__ import annotations

import io
import json
import os
import pdb
import socket
import sys
from _thread import get_ident
from bdb import BdbQuit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType, TracebackType
    from typing import Any

# Modules with frames between the begin of a thread and the program. The file that starts the program has one, too.
_LAUNCHERS = ("runpy", "threading")
_STARTER = os.path.join(os.path.dirname(__file__), "start_program.py")
# The characters of one piece of a text, and of an incomplete line that is sent.
_PIECE = 8192

# By thread: the session in which a program is stopped, or steps.
_sessions: dict[int, ProgramDebugger] = {}


def stop_at(frame: FrameType, address: str, *, header: str | None = None, commands: Any = None) -> None:
    """Stops the calling thread in `frame`, at its next line."""
    session = _sessions.get(get_ident())
    if session is not None and session.is_busy:
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


class ProgramDebugger(pdb.Pdb):
    """The pdb of one thread; it has breakpoints of its own."""

    def __init__(self, address: str) -> None:
        self._link = socket.socket(socket.AF_UNIX)
        try:
            self._link.connect("\0" + address)
        except OSError:
            self._link.close()
            raise
        self._input = self._link.makefile("rb")
        self._written = ""
        self.thread = get_ident()
        # Whether a command is being carried out.
        self.is_busy = False
        self.is_over = False
        # The debugger is gone: every command is `continue`.
        self._is_released = False
        # The frame of the next stop, and the outermost frame of the session.
        self._start: FrameType | None = None
        self._outermost: FrameType | None = None
        self._place: tuple[str, str, int] = ("", "", 0)
        terminal: Any = Terminal(self)
        super().__init__(stdin=terminal, stdout=terminal, nosigint=True)
        self.use_rawinput = False

    # ---- where it is

    def set_trace(self, frame: FrameType | None = None, **options: Any) -> None:
        """Stops in `frame`, after this has returned; the frames before the program are left alone."""
        assert frame is not None
        # pdb may be stepping, and would step into this method.
        sys.settrace(None)
        self.reset()
        self._start, self._outermost = frame, _outermost(frame)
        self.botframe = self._outermost.f_back or self._outermost
        _sessions[self.thread] = self
        traced: FrameType | None = frame
        while traced is not None:
            traced.f_trace = self.trace_dispatch
            traced = None if traced is self._outermost else traced.f_back
        self.set_step()
        sys.settrace(self.trace_dispatch)

    def stop_here(self, frame: FrameType) -> bool:
        # Destructors and weak-reference callbacks run anywhere, even between this call and the frame.
        return (self._start is None or self._start is frame) and super().stop_here(frame)

    def _load_breaks(self) -> None:
        """pdb shares the breakpoints of all its instances; here each has its own."""

    def break_here(self, frame: FrameType) -> bool:
        try:
            return super().break_here(frame)
        except KeyError:  # another thread's session has removed a breakpoint at the same line
            return False

    def get_stack(self, f: FrameType | None, t: TracebackType | None) -> tuple[list[tuple[FrameType, int]], int]:
        """From the program's first frame on."""
        stack, index = super().get_stack(f, t)
        first = next((i for i, (frame, _) in enumerate(stack) if frame is self._outermost), 0)
        return stack[first:], max(0, index - first)

    def setup(self, f: FrameType | None, tb: Any) -> Any:
        self._start = None
        stop = super().setup(f, tb)
        if self.stack:
            frame, line = self.stack[self.curindex]
            self._place = frame.f_code.co_name, frame.f_code.co_filename, line
        return stop

    def trace_dispatch(self, frame: FrameType, event: str, arg: Any) -> Any:
        try:
            following = super().trace_dispatch(frame, event, arg)
        except BdbQuit:
            raise BdbQuit("the program was quit in the debugger") from None
        if event == "return" and frame is self._outermost:
            sys.settrace(None)
            self.end()
        return following

    # ---- what it reads and writes

    def onecmd(self, line: str) -> Any:
        self.is_busy = True
        try:
            return super().onecmd(line)
        finally:
            self.is_busy = False

    def read(self) -> str:
        """The next line that the user enters."""
        if not self._is_released:
            end = self._written.rfind("\n") + 1
            text, prompt, self._written = self._written[:end], self._written[end:], ""
            self._show(text)
            function, path, number = self._place
            self._send({"prompt": prompt, "function": function, "path": path, "line": number})
            line = self._answer()
            if line is not None:
                return line + "\n"
            self._is_released = True
            self.clear_all_breaks()
        return "continue\n"

    def write(self, text: str) -> None:
        self._written += text
        end = self._written.rfind("\n") + 1
        if len(self._written) > _PIECE:
            end = end or len(self._written)
            text, self._written = self._written[:end], self._written[end:]
            self._show(text)

    def flush(self) -> None:
        """Output of a command that goes on, line by line; the prompt goes with the question for its line."""
        end = self._written.rfind("\n") + 1
        text, self._written = self._written[:end], self._written[end:]
        self._show(text)

    def _show(self, text: str) -> None:
        for begin in range(0, len(text), _PIECE):
            self._send({"text": text[begin : begin + _PIECE]})

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self._link.sendall(json.dumps(message).encode() + b"\n")
        except OSError:  # the code that waits for a line notices it
            return

    def _answer(self) -> str | None:
        try:
            line = self._input.readline()
            return json.loads(line) if line else None
        except OSError:
            return None

    # ---- how it ends

    def set_continue(self) -> None:
        super().set_continue()
        if not self.breaks:
            self.is_over = True

    def set_quit(self) -> None:
        super().set_quit()
        self.is_over = True

    def interaction(self, frame: FrameType | None, traceback: Any, *rest: Any) -> None:
        super().interaction(frame, traceback, *rest)
        # A command in the user's `.pdbrc` may have continued the program.
        if self.is_over:
            self.end()

    def end(self) -> None:
        """Ends the connection; breakpoints that pdb was asked for go with the session."""
        self.is_over = True
        self.clear_all_breaks()
        if _sessions.get(self.thread) is self:
            del _sessions[self.thread]
        # The frames hold objects of the program.
        self._start = self._outermost = self.botframe = None
        text, self._written = self._written, ""
        self._show(text)
        self.let_go()

    def let_go(self) -> None:
        self._input.close()
        self._link.close()

    # ---- commands that are different here

    def clear_all_breaks(self) -> None:
        """Its own only."""
        for path, lines in list(self.breaks.items()):
            for line in list(lines):
                try:
                    self.clear_break(path, line)
                except KeyError:  # as in `break_here`
                    continue
        self.breaks.clear()

    def do_clear(self, arg: str) -> Any:
        """cl(ear) [number ... | filename:lineno]; without arguments, all breakpoints."""
        if arg.strip():
            return super().do_clear(arg)
        self.clear_all_breaks()
        self.message("Cleared all breakpoints")
        return None

    do_cl = do_clear

    def do_run(self, arg: str) -> None:
        """There is nothing to run again: the run has started the program."""
        self.error("the program of a rank cannot be run again from here")

    do_restart = do_run

    def do_interact(self, arg: str) -> None:
        """An interpreter with a copy of the local names, until `exit()`."""
        from code import InteractiveConsole

        assert self.curframe is not None
        console = InteractiveConsole({**self.curframe.f_globals, **self.curframe.f_locals}, "<console>")

        def ask(prompt: str = "") -> str:
            if self._is_released:
                raise EOFError
            self.write(prompt)
            return self.read().rstrip("\n")

        console.raw_input = ask
        console.write = self.write  # pyright: ignore[reportAttributeAccessIssue]
        before, sys.stdout = sys.stdout, self.stdout
        try:
            console.interact(banner="exit() leads back to pdb", exitmsg="")
        except SystemExit:
            return
        finally:
            sys.stdout = before


class Terminal(io.TextIOBase):
    """What pdb, and the statements that it runs, take for a terminal; other threads that meet it in `sys.stdout` write past it."""

    def __init__(self, session: ProgramDebugger) -> None:
        self._session = session

    @property
    def encoding(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return "utf-8"

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def readline(self, size: int | None = -1, /) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self._session.read() if self._is_here() else ""

    def write(self, text: str, /) -> int:
        if self._is_here():
            self._session.write(text)
        elif sys.__stdout__ is not None:
            sys.__stdout__.write(text)
        return len(text)

    def flush(self) -> None:
        if self._is_here():
            self._session.flush()

    def _is_here(self) -> bool:
        return get_ident() == self._session.thread and not self._session.is_over


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
    for session in _sessions.values():
        session.let_go()
    _sessions.clear()


os.register_at_fork(after_in_child=_forget)
