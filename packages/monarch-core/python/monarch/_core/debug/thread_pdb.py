"""The pdb of one thread, from a breakpoint to the last `continue`: a session, whose terminal is not that of the process.

It is the base of the debuggers of actors and of programs of ranks. A program loads it from its file, whatever `sys.path` has, so it imports
nothing of Monarch. Each session has breakpoints of its own, although pdb shares them among its instances.
"""

from __future__ import annotations

import io
import pdb
import sys
from _thread import get_ident
from dis import opmap

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType, TracebackType
    from typing import Any

# The instructions at which a yielding frame is; since Python 3.13 the frame is one instruction further.
_YIELDING = (opmap["YIELD_VALUE"], opmap["RESUME"])
_SUSPENDABLE = 0x20 | 0x80 | 0x200  # flags of generators, coroutines and async generators

# The session of each thread that has one.
sessions: dict[int, ThreadPdb] = {}


class ThreadPdb(pdb.Pdb):
    """A debugger defines `ask`, `write` and `first_frame`."""

    # The answer to a command that would run the code again.
    cannot_run = "the code cannot be run again from here"

    def __init__(self, terminal: Terminal, **options: Any) -> None:
        self.thread = get_ident()
        stream: Any = terminal
        super().__init__(stdin=stream, stdout=stream, nosigint=True, **options)
        self.use_rawinput = False
        # The frame of the next stop, and the outermost frame of the session.
        self.start: FrameType | None = None
        self.outermost: FrameType | None = None
        # Output that is not sent.
        self.written = ""
        # The debugger is gone: every command is `continue`.
        self.released = False
        self.over = False

    def ask(self, text: str, prompt: str) -> str | None:
        """Shows text and prompt, and gives the line of the user; None where no user answers any more."""
        raise NotImplementedError

    def write(self, text: str) -> None:
        """Adds to `written`, and shows what need not wait for a prompt."""
        raise NotImplementedError

    def first_frame(self, frame: FrameType) -> FrameType:
        """The outermost frame of the user's code, which has called this one."""
        raise NotImplementedError

    # ---- where it is

    def set_trace(self, frame: FrameType | None = None, **options: Any) -> None:
        """Stops in `frame`, after this method has returned; frames before the first one are left alone."""
        assert frame is not None
        # pdb may be stepping, and would step into this method.
        sys.settrace(None)
        self.reset()
        self.start, self.outermost = frame, self.first_frame(frame)
        self.botframe = self.outermost.f_back or self.outermost
        sessions[self.thread] = self
        traced: FrameType | None = frame
        while traced is not None:
            traced.f_trace = self.trace_dispatch
            traced = None if traced is self.outermost else traced.f_back
        self.set_step()
        sys.settrace(self.trace_dispatch)

    def stop_here(self, frame: FrameType) -> bool:
        # Destructors and weak-reference callbacks run anywhere, even between this call and the frame.
        return (self.start is None or self.start is frame) and super().stop_here(frame)

    def _load_breaks(self) -> None:
        """Loads this session's breakpoints: pdb shares breakpoints among all instances, but here each session has its own."""

    def break_here(self, frame: FrameType) -> bool:
        try:
            return super().break_here(frame)
        except KeyError:  # another session has removed a breakpoint at the same line
            return False

    def get_stack(self, f: FrameType | None, t: TracebackType | None) -> tuple[list[tuple[FrameType, int]], int]:
        """The stack from the first frame on."""
        stack, index = super().get_stack(f, t)
        first = next((i for i, (frame, _) in enumerate(stack) if frame is self.outermost), 0)
        return stack[first:], max(0, index - first)

    def setup(self, f: FrameType | None, tb: Any) -> Any:
        self.start = None
        return super().setup(f, tb)

    def trace_dispatch(self, frame: FrameType, event: str, arg: Any) -> Any:
        following = super().trace_dispatch(frame, event, arg)
        if event == "return" and frame is self.outermost and not _is_suspended(frame):
            sys.settrace(None)
            self.end()
        return following

    # ---- what it reads

    def read(self) -> str:
        """The next line of the user."""
        if not self.released:
            end = self.written.rfind("\n") + 1
            text, prompt, self.written = self.written[:end], self.written[end:], ""
            line = self.ask(text, prompt)
            if line is not None:
                return f"{line}\n"
            self.released = True
            self.clear_all_breaks()
        return "continue\n"

    # ---- how it ends

    def set_continue(self) -> None:
        super().set_continue()
        if not self.breaks:
            self.over = True

    def set_quit(self) -> None:
        super().set_quit()
        self.over = True

    def interaction(self, frame: FrameType | None, traceback: Any, *rest: Any) -> None:
        super().interaction(frame, traceback, *rest)
        # A command in the user's `.pdbrc` may have continued the program.
        if self.over:
            self.end()

    def end(self) -> None:
        """Ends the session; its breakpoints leave pdb."""
        self.over = True
        self.clear_all_breaks()
        if sessions.get(self.thread) is self:
            del sessions[self.thread]
        # The frames hold objects of the user's code.
        self.start = self.outermost = self.botframe = None

    # ---- commands that are different here

    def clear_all_breaks(self) -> None:
        """Clears the breakpoints of this session only."""
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
        """There is nothing to run again."""
        self.error(self.cannot_run)

    do_restart = do_run

    def do_interact(self, arg: str) -> None:
        """An interpreter with a copy of the local names, until `exit()`."""
        from code import InteractiveConsole

        assert self.curframe is not None
        console = InteractiveConsole({**self.curframe.f_globals, **self.curframe.f_locals}, "<console>")

        def ask(prompt: str = "") -> str:
            if self.released:
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
    """The terminal of pdb and of the statements that it runs. Output of other threads that use it as `sys.stdout` passes through."""

    def __init__(self, session: ThreadPdb) -> None:
        self._session = session

    @property
    def encoding(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return "utf-8"

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def readline(self, size: int | None = -1, /) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        session = self.here()
        return "" if session is None else session.read()

    def write(self, text: str, /) -> int:
        session = self.here()
        if session is not None:
            session.write(text)
        else:
            self.pass_on(text)
        return len(text)

    def here(self) -> ThreadPdb | None:
        """The session of the calling thread."""
        thread = get_ident()
        return self._session if thread == self._session.thread else sessions.get(thread)

    def pass_on(self, text: str) -> None:
        """Writes text of a thread without a session."""
        if sys.__stdout__ is not None:
            sys.__stdout__.write(text)


def _is_suspended(frame: FrameType) -> bool:
    """Whether the frame only yields, or waits in an `await`, at a "return" event, and is resumed later."""
    code = frame.f_code
    return bool(code.co_flags & _SUSPENDABLE) and frame.f_lasti >= 0 and code.co_code[frame.f_lasti] in _YIELDING
