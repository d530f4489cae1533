"""The debugger in the process of an actor: pdb on the actor's own thread, its input and output as messages to the controller.

A line for pdb is the answer of a call to the controller, which answers when a user has typed the line. The thread waits as it does for any
other call, and is notified of the end of the controller as of any other actor's. An async actor waits in the same way: its loop is
blocked until the user answers, as it is under pdb anywhere.

A session covers one call: it begins at the endpoint and ends with the call; frames of the runtime are not shown. Only calls that hit a
breakpoint pay for it, except for a look at an empty list when an endpoint has failed.
"""

from __future__ import annotations

import re
import sys
from _thread import allocate_lock, get_ident
from bdb import BdbQuit
from pdb import Pdb
from typing import TYPE_CHECKING, Any

from monarch._core.debug.thread_pdb import Terminal, ThreadPdb, sessions
from monarch._core.errors.complaint import complain
from monarch._core.process.current import current_process
from monarch._core.process.identity import new_uid, to_label

if TYPE_CHECKING:
    from types import FrameType, TracebackType

    from monarch._core._native import Call
    from monarch._core.actor.local_actor import LocalActor
    from monarch._core.call.endpoint import Endpoint
    from monarch._core.call.future import Future
    from monarch._core.debug.controller import DebugController

# Modules whose frames are between the begin of a thread and the user's code.
_RUNTIME = ("monarch._core.actor.local_actor", "monarch._core.actor.async_actor", "monarch._core.process.actor_thread", "threading")
_PACKAGE = "monarch._core."
# The length of an incomplete line, in characters, from which the session sends it.
_LONG = 8192
# Seconds between two checks of an async actor in a session for a stop.
_LOOK_EVERY = 0.05
# The names of actors that the prompt of the debugger accepts.
_NAME = re.compile(r"[-_a-zA-Z0-9]+")
# The threads whose sessions read commands right now.
_busy: set[int] = set()
_lock = allocate_lock()
# The original `sys.stdin`, `sys.stdout` and `sys.displayhook`, while any session is busy.
_streams: tuple[Any, Any, Any] | None = None


def stop_at(frame: FrameType, actor: LocalActor, *, header: str | None = None, commands: Any = None) -> None:
    """Stops the calling thread, in `frame` or at its next line."""
    thread = get_ident()
    session = sessions.get(thread)
    if thread in _busy:
        if session is not None:
            session.message("*** breakpoint() in a command of the debugger: passed over")
        return
    _remember(actor)
    if session is None:
        session = DebugSession(actor)
    if header is not None:
        session.message(header)
    session.rcLines.extend(commands or ())
    session.set_trace(frame)


def _remember(actor: LocalActor) -> None:
    """Records the message that this code belongs to: if it fails, a post-mortem session opens."""
    actor.after_failure = after_failure
    side = actor.loop_side
    if side is None:
        actor.debugged[:] = [actor.mailbox.taken]
        return
    from monarch._core.actor.async_actor import message_of_this_code

    call = message_of_this_code()
    kept = [known for known in actor.debugged if known in side.calls() and known is not call]
    actor.debugged[:] = kept if call is None else [*kept, call]


def after_failure(actor: LocalActor, call: Call | None, exc: BaseException) -> None:
    """Opens a session after an endpoint or `__init__` has raised, if the call had hit a breakpoint before."""
    key = actor.mailbox.taken if actor.loop_side is None else call
    if key not in actor.debugged:
        return
    actor.debugged.remove(key)
    asyncio = sys.modules.get("asyncio")
    quiet = (BdbQuit, GeneratorExit) if asyncio is None else (BdbQuit, GeneratorExit, asyncio.CancelledError)
    if actor.failure is None and exc.__traceback__ is not None and not isinstance(exc, quiet):
        DebugSession(actor).after_death(exc)


class DebugSession(ThreadPdb):
    """The pdb of one thread, from a breakpoint to the end of the call or the last `continue`."""

    cannot_run = "an actor cannot be run again from here"

    def __init__(self, actor: LocalActor) -> None:
        super().__init__(SessionStream(self), skip=[_PACKAGE + "*"])
        self.actor = actor
        self.id = new_uid()
        self.post_mortem = False
        # The function and line of the current frame.
        self.function: str | None = None
        self.line: int | None = None
        self.path = ""
        self.controller: DebugController | None = None

    def first_frame(self, frame: FrameType) -> FrameType:
        return _outermost(frame)

    # ---- where it is

    def get_stack(self, f: FrameType | None, t: TracebackType | None) -> tuple[list[tuple[FrameType, int]], int]:
        """The stack from the endpoint on; after an exception also without the innermost frames of the runtime."""
        if not self.post_mortem:
            return super().get_stack(f, t)
        stack, index = Pdb.get_stack(self, f, t)
        first, last = 0, len(stack)
        while first < last - 1 and _is_ours(stack[first][0]):
            first += 1
        while last - 1 > first and _is_ours(stack[last - 1][0]):
            last -= 1
        return stack[first:last], max(0, min(index, last - 1) - first)

    def setup(self, f: FrameType | None, tb: Any) -> Any:
        stop = super().setup(f, tb)
        frame, self.line = self.stack[self.curindex] if self.stack else (f, None)
        if frame is not None:
            self.function, self.path = frame.f_code.co_name, frame.f_code.co_filename
        return stop

    # ---- what it reads and writes

    def onecmd(self, line: str) -> Any:
        _enter(self.thread)
        try:
            return super().onecmd(line)
        finally:
            _leave(self.thread)

    def ask(self, text: str, prompt: str) -> str | None:
        """The line of this client of the debugger or of a later one."""
        try:
            controller = self._open()
            line: str | None = _wait(controller.prompt.call_one(self.id, self._place(), text, prompt))
        except Exception as e:
            self._lost(e)
            return None
        return line

    def write(self, text: str) -> None:
        self.written += text
        if self.controller is not None and ("\n" in text or len(self.written) > _LONG):
            end = self.written.rfind("\n") + 1 or len(self.written)
            text, self.written = self.written[:end], self.written[end:]
            self._send(self.controller.write, text)

    def _send(self, endpoint: Endpoint[[int, str], None], text: str) -> None:
        try:
            endpoint.broadcast(self.id, text)
        except RuntimeError as e:  # the thread that waits for a line notices the end
            del e

    def _place(self) -> tuple[str | None, int | None]:
        return self.function, self.line

    def _open(self) -> DebugController:
        """The controller. The first call opens the session there and writes to stderr how to attach to it."""
        if self.controller is not None:
            return self.controller
        from monarch._core.debug.controller import NAME, DebugController
        from monarch._core.debug.session_info import DebugSessionInfo
        from monarch._core.hosts.controller import get_or_spawn_controller

        actor = self.actor
        name = actor.info.name if _NAME.fullmatch(actor.info.name) else to_label(actor.info.name)
        coords = {label: actor.point[label] for label in actor.point.extent}
        info = DebugSessionInfo(name, actor.rank, coords, current_process().host, self.function, self.line)
        controller = _wait(get_or_spawn_controller(NAME, DebugController))
        how, taken = _wait(controller.open_session.call_one(self.id, info, current_process().uid))
        self.controller = controller
        what = "exception" if self.post_mortem else "breakpoint"
        where = f"{self.function}() at {self.path}:{self.line}"
        _log(f"{what} in {name} rank {actor.rank}, {where}; attach with: {how}")
        if taken:
            _log(f"Debug session for rank {actor.rank} already exists for actor {name}; this one comes after it")
        return controller

    def _lost(self, error: Exception) -> None:
        from monarch._core.errors.errors import SupervisionError

        failure = error.failure if isinstance(error, SupervisionError) else None
        if failure is not None and failure.reason.kind == "stopped":
            self._wait_for_the_end()
        _log(f"the debugger cannot be reached, {self.function}() goes on: {error}")

    # ---- how it ends

    def _wait_for_the_end(self) -> None:
        """Blocks at the end of the job: user code must not continue as if the user had typed `continue`.

        A sync endpoint waits until its process is killed. An async endpoint is cancelled by the actor's stop, but the session has to check
        for the stop itself because the loop is blocked.
        """
        from threading import Event

        actor, pause = self.actor, Event()
        while actor.loop_side is None or self.thread != actor.thread or (actor.stopping is None and actor.failure is None):
            pause.wait(_LOOK_EVERY)
        from asyncio import CancelledError

        actor.loop_side.over = True
        self.end()
        raise CancelledError

    def _cmdloop(self) -> None:
        super()._cmdloop()
        if self.over:
            self.end()

    def end(self) -> None:
        """Ends the session, also at the controller."""
        super().end()
        if self.controller is not None:
            text, self.written = self.written, ""
            self._send(self.controller.close_session, text)
            self.controller = None

    def after_death(self, exc: BaseException) -> None:
        from traceback import format_exception_only

        self.post_mortem = True
        sessions[self.thread] = self
        try:
            self.reset()
            self.message("".join(format_exception_only(exc)).rstrip())
            self.interaction(None, exc.__traceback__)
        finally:
            self.end()


class SessionStream(Terminal):
    """The terminal of a session. Output of other threads goes to the stream that was `sys.stdout` before."""

    def pass_on(self, text: str) -> None:
        if _streams is not None:
            _streams[1].write(text)
        else:
            super().pass_on(text)


def _enter(thread: int) -> None:
    global _streams
    with _lock:
        if not _busy:
            _streams = sys.stdin, sys.stdout, sys.displayhook
        _busy.add(thread)


def _leave(thread: int) -> None:
    """Restores the streams that pdb replaces for a statement; two threads may have restored theirs in the wrong order."""
    global _streams
    with _lock:
        _busy.discard(thread)
        if not _busy and _streams is not None:
            if isinstance(sys.stdout, SessionStream) or isinstance(sys.stdin, SessionStream):
                sys.stdin, sys.stdout, sys.displayhook = _streams
            _streams = None


def _wait(future: Future[Any]) -> Any:
    """Waits without the warning that the loop of this thread is blocked."""
    future.__core__.wait(None)
    return future.get()


def _log(text: str) -> None:
    complain(f"monarch: {text}")


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).startswith(_PACKAGE)


def _outermost(frame: FrameType) -> FrameType:
    """The first frame of user code: an endpoint, or the function of a user's task or thread."""
    frames = [frame]
    while (below := frames[-1].f_back) is not None and below.f_globals.get("__name__") not in _RUNTIME:
        frames.append(below)
    if str(frames[-1].f_globals.get("__name__")).startswith("asyncio"):
        # The frame belongs to a task of the actor's loop, not to one of a loop that the user's code runs inside a call.
        for at in range(len(frames) - 1, 0, -1):
            if frames[at].f_globals.get("__name__") == "asyncio.events":
                return frames[at - 1]
    return frames[-1]
