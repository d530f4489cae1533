"""`shell`: this terminal becomes one on a host."""

from __future__ import annotations

import errno
import os
import select
import signal
import sys
import termios
import threading
import tty
from collections import deque
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

from monarch.actor import Actor, HostMesh, MeshFailure, endpoint, this_proc
from monarch.extension import SignalThread
from monarch.job._client.exec import check_folder, check_words
from monarch.job._client.execution import cannot_start
from monarch.job._files import audit
from monarch.job._host.command import Refusal
from monarch.job._host.terminal import Terminal
from monarch.job.errors import ExecError

_TYPED = 4096
# The most writes in flight, and the seconds between two checks for room.
_UNTAKEN, _LOOK_AGAIN = 64, 0.02
# The sequence of ssh: after the start of a line, it ends the session even if the host no longer answers.
_ESCAPE = b"~."
_LEAVE = (signal.SIGHUP, signal.SIGTERM)


def shell(host_mesh_singleton: HostMesh, *, env: dict[str, str] | None = None, workdir: str | None = None) -> int:
    """Runs a login shell on one host, in a terminal whose input, output and size are this one's; the exit code of the shell.

    `ValueError` if there is not exactly one host, `ExecError` if the shell cannot be started, `SupervisionError` if the host is lost.
    `~.` at the start of a line leaves. When the client goes, the shell gets SIGHUP, then SIGTERM, then SIGKILL. The same happens when the
    input ends while a command runs, with exit code 129; a shell that waits for input ends by itself then.
    """
    hosts = len(host_mesh_singleton)
    if hosts != 1:
        raise ValueError(f"shell needs a singleton HostMesh, this one has {hosts} hosts\nhint: slice it, such as hosts.slice(hosts=0)")
    check_words(["shell"], env)
    check_folder("workdir", workdir)
    keeper = this_proc().spawn("shell", ShellKeeper)
    variables = {"TERM": os.environ.get("TERM", "dumb"), **(env or {})}
    try:
        terminal = keeper.open.call_one(host_mesh_singleton, variables, workdir or None, _window(), audit.origin()).get()
        started: Refusal | str = terminal.start.call_one().get()
        if not isinstance(started, str):
            raise cannot_start(started)
        audit.record("shell", started, "begun", workdir=workdir)
        return _Session(terminal).run()
    finally:
        keeper.stop().get()


class ShellKeeper(Actor):
    """Owns the proc of a session, whose failures come out of the session's calls."""

    _is_system_actor = True

    def __supervise__(self, failure: MeshFailure) -> bool:
        return True

    @endpoint
    def open(self, host: HostMesh, env: dict[str, str], workdir: str | None, size: tuple[int, int], asked: audit.Origin) -> Terminal:
        return host.spawn_procs(name="shell").spawn("terminal", Terminal, env, workdir, size, asked)


class _Session:
    """Typed bytes go out on this thread, output comes in on another one."""

    def __init__(self, terminal: Any) -> None:
        self.terminal = terminal
        self.code: int | None = None
        self.error: BaseException | None = None
        self.over, self._over = os.pipe()
        try:
            self.signalled, self._signalled = os.pipe()
        except OSError:
            os.close(self.over)
            os.close(self._over)
            raise
        # The calls are answered when the terminal has taken the text, so that pasted text does not pile up.
        self.sent: deque[Any] = deque()
        self.line_start = True
        self.tilde = False

    def run(self) -> int:
        shower = threading.Thread(target=self._show, daemon=True, name="monarch-shell")
        try:
            with _raw(_input()), self._signals():
                shower.start()
                self._type()
        finally:
            # The other thread writes into its pipe until the session is over.
            if self.code is not None or self.error is not None:
                shower.join()
                os.close(self._over)
                os.close(self.over)
            os.close(self.signalled)
            os.close(self._signalled)
        if self.error is not None:
            raise self.error
        return 255 if self.code is None else self.code

    def _signals(self) -> AbstractContextManager[object]:
        """Numbers of signals come through a pipe, if this is the main thread; else nothing comes."""
        if threading.current_thread() is not threading.main_thread():
            return nullcontext()
        os.set_blocking(self._signalled, False)
        return SignalThread((signal.SIGWINCH, *_LEAVE), self._pass_on)

    def _pass_on(self, number: int) -> None:
        with suppress(BlockingIOError):  # enough to read
            os.write(self._signalled, bytes([number]))

    def _show(self) -> None:
        try:
            while True:
                data, code = self.terminal.read.call_one().get()
                if code is not None:
                    self.code = code
                    break
                _write_all(data)
        except BaseException as e:  # shown where `shell` was called
            self.error = e
        os.write(self._over, b"x")

    def _type(self) -> None:
        source = _input()
        if source is None:
            self.sent.append(self.terminal.end_input.call_one())
        while True:
            full = len(self.sent) >= _UNTAKEN
            watched = [self.over, self.signalled, *([] if source is None or full else [source])]
            ready, _, _ = select.select(watched, [], [], _LOOK_AGAIN if full else None)
            self._forget_taken()
            if self.over in ready:
                return
            if self.signalled in ready:
                for number in os.read(self.signalled, 64):
                    if number in _LEAVE:
                        raise SystemExit(128 + number)
                    self.terminal.resize.broadcast(_window())
            if source in ready:
                data = _typed(source)
                if not data:
                    source = None
                elif self._leaves(data):
                    return
                self.sent.append(self.terminal.write.call_one(data) if data else self.terminal.end_input.call_one())

    def _forget_taken(self) -> None:
        while self.sent:
            try:
                self.sent[0].get(timeout=0)
            except TimeoutError:
                return
            except Exception:  # the reads report the reason
                self.sent.clear()
                return
            self.sent.popleft()

    def _leaves(self, data: bytes) -> bool:
        for byte in data:
            if self.tilde and byte == _ESCAPE[1]:
                return True
            self.tilde = self.line_start and byte == _ESCAPE[0]
            self.line_start = byte in b"\r\n"
        return False


# ---- the terminal of the client


def _input() -> int | None:
    try:
        return sys.stdin.fileno()
    except (AttributeError, OSError, ValueError):  # the stream is closed, or replaced by another object
        return None


def _typed(fd: int) -> bytes:
    try:
        return os.read(fd, _TYPED)
    except OSError:  # the terminal has gone
        return b""


def _write_all(data: bytes) -> None:
    if sys.stdout is None:  # closed by the caller  # pyright: ignore[reportUnnecessaryComparison]
        return
    try:
        fd = sys.stdout.fileno()
    except (AttributeError, OSError, ValueError):
        sys.stdout.write(data.decode(errors="replace"))
        sys.stdout.flush()
        return
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            select.select([], [fd], [])
        except OSError as e:
            if e.errno == errno.EPIPE:
                raise
            raise ExecError(f"cannot show the output of the shell: {e.strerror}") from None


def _window() -> tuple[int, int]:
    for stream in (sys.__stdout__, sys.__stdin__):
        try:
            size = os.get_terminal_size(stream.fileno())  # pyright: ignore[reportOptionalMemberAccess]
        except (AttributeError, OSError, ValueError):
            continue
        return size.lines, size.columns
    return 24, 80


class _raw:
    """The terminal passes on every key, and shows nothing by itself."""

    def __init__(self, fd: int | None) -> None:
        self.fd = fd if fd is not None and os.isatty(fd) else None
        self.before: Any = None

    def __enter__(self) -> None:
        if self.fd is not None:
            self.before = termios.tcgetattr(self.fd)
            # Text typed meanwhile is for the shell.
            tty.setraw(self.fd, termios.TCSANOW)

    def __exit__(self, *_: object) -> None:
        if self.fd is not None:
            try:
                # TCSANOW does not wait for the output: the terminal may have no reader any more.
                termios.tcsetattr(self.fd, termios.TCSANOW, self.before)
            except termios.error:  # the terminal hung up
                return
