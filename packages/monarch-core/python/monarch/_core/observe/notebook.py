"""Notebooks: what procs print appears in the cell that is running, and is there when the cell ends. Of failures see `cells`.

Lines of procs go to the client's descriptors 1 and 2. In a kernel those are not what a cell shows: a cell shows what is written to the
kernel's `sys.stdout` and `sys.stderr`. So in a kernel lines go into pipes of our own instead, and a thread writes them to these streams. At
the end of each cell everything that was printed before is written first. The threads that this waits for do not wait for the kernel's loop,
and it is a matter of microseconds. Should one be held up, a cell ends without it after `_FLUSH_TIMEOUT`, and the next ones do not wait.

IPython is detected, never imported.
"""

from __future__ import annotations

import os
import sys
from _thread import allocate_lock, get_ident, start_new_thread
from time import sleep

from monarch._core.observe.cells import Cells

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _thread import LockType
    from typing import Any

    from monarch._core.process.process import LocalProcess

# A cell ends late by at most so much, in seconds (contract 13.1); what comes later still appears, where the frontend puts late output.
_FLUSH_TIMEOUT = 3.0
_CLOSE_TIMEOUT = 1.0
_CHUNK = 64 << 10
# How often, and how long, a line waits for a `print` that is in progress, in seconds. That takes microseconds; a stream that blocks may
# take for ever.
_POLITE = 50
_PAUSE = 0.0002
# Frames from where a thread may be switched to the `write` that it is in.
_DEPTH = 8


def install(process: LocalProcess) -> None:
    """Called once, when a client starts in a process that has IPython loaded."""
    shell = _shell()
    if shell is None:
        return
    kernel = getattr(shell, "kernel", None)
    console = Console(process) if kernel is not None else None
    # `ipython script.py` runs a script.
    if kernel is not None or getattr(getattr(shell, "parent", None), "interact", True):
        process.cells = Cells(shell)
    native = process.native

    def flush(*_: Any) -> None:
        if process.closed or os.getpid() != process.pid:
            return
        if console is None:
            native.flush_output(_FLUSH_TIMEOUT)
        elif not console.is_behind():
            native.flush_output(_FLUSH_TIMEOUT)
            console.flush(_FLUSH_TIMEOUT)

    shell.events.register("post_run_cell", flush)


def _shell() -> Any:
    """The interactive shell of this process, if it has one."""
    get = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return None if get is None else get()


class Console:
    """Carries lines from the runtime to the streams of the kernel."""

    def __init__(self, process: LocalProcess) -> None:
        self.reads: list[int] = []
        self.writes: list[int] = []
        for _ in ("stdout", "stderr", "requests"):
            read, write = os.pipe()
            os.set_blocking(read, False)
            self.reads.append(read)
            self.writes.append(write)
        # Locks to release when all that was in the pipes is written, and the newest of them.
        self.waiting: list[LockType] = []
        self.last: LockType | None = None
        self.ended = allocate_lock()
        self.ended.acquire()
        process.native.set_consoles(self.writes[0], self.writes[1])
        process.console = self
        # Not a `threading.Thread`: kernels have the output of those appear in the cell that started them.
        start_new_thread(self._carry, ())

    def flush(self, timeout: float) -> None:
        """Waits until what is in the pipes is written, at most so long."""
        done = allocate_lock()
        done.acquire()
        self.last = done
        self.waiting.append(done)
        os.write(self.writes[2], b"f")
        if done.acquire(timeout=timeout):
            done.release()

    def is_behind(self) -> bool:
        """The last flush that was asked for has not come to its end."""
        return self.last is not None and self.last.locked()

    def close(self) -> None:
        """Lines that are printed from now on go where they go without a notebook; the thread ends."""
        for number in (1, 2):
            os.dup2(number, self.writes[number - 1])
        os.close(self.writes[2])
        self.ended.acquire(timeout=_CLOSE_TIMEOUT)

    def _carry(self) -> None:
        from codecs import getincrementaldecoder
        from select import POLLIN, poll

        from monarch._core._native import set_runtime_thread

        set_runtime_thread()
        decoders = [getincrementaldecoder("utf-8")("replace") for _ in range(2)]
        ready = poll()
        for read in self.reads:
            ready.register(read, POLLIN)
        is_open = True
        while is_open:
            ready.poll()
            # First the requests: what they are about is in the pipes already.
            waiting: list[LockType] = []
            try:
                is_open = os.read(self.reads[2], 1024) != b""
                waiting, self.waiting = self.waiting, waiting
            except BlockingIOError:
                pass
            for index, decoder in enumerate(decoders):
                while data := self._read(self.reads[index]):
                    _write("stdout" if index == 0 else "stderr", decoder.decode(data))
            for lock in waiting:
                lock.release()
        for read in self.reads:
            os.close(read)
        self.ended.release()

    def _read(self, fd: int) -> bytes:
        try:
            return os.read(fd, _CHUNK)
        except BlockingIOError:
            return b""


def _write(name: str, text: str) -> None:
    stream: Any = getattr(sys, name)
    # A `print` writes its text and its line end one after the other: lines of procs must not get in between.
    write: Any = getattr(stream, "write", None)
    code = getattr(getattr(write, "__func__", None), "__code__", None)
    for _ in range(_POLITE):
        if code is None or not _in_progress(code):
            break
        sleep(_PAUSE)
    try:
        stream.write(text)
    except Exception as e:  # closed, or a capture of the user's that does not like it: as little can be done as for a closed console
        del e


def _in_progress(code: Any) -> bool:
    """Whether another thread is in this function. Between two writes of one `print` threads are switched nowhere else."""
    own = get_ident()
    for thread, frame in sys._current_frames().items():
        depth = 0 if thread == own else _DEPTH
        while depth and frame is not None:
            if frame.f_code is code:
                return True
            frame, depth = frame.f_back, depth - 1
    return False
