"""Notebooks: the output of procs appears in the running cell, before the cell ends. `cells` handles failures.

Lines of procs go to the client's descriptors 1 and 2. A kernel does not show those in a cell: a cell shows the text that is written to the
kernel's `sys.stdout` and `sys.stderr`. So in a kernel the lines go into pipes of this module instead, and a thread writes them to these
streams. At the end of each cell the cell waits until all earlier output is written. The threads involved do not wait for the kernel's loop,
so this takes microseconds. If one of them is blocked, the cell ends after `_FLUSH_TIMEOUT`, and the next cells do not wait.

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

# The longest delay of a cell's end in seconds. Later output still appears, where the frontend puts late output.
_FLUSH_TIMEOUT = 3.0
_CLOSE_TIMEOUT = 1.0
_CHUNK = 64 << 10
# The number of checks, and the seconds between two, for which a line waits for a `print` in progress. A `print` takes microseconds; a
# stream that blocks may take for ever.
_POLITE = 50
_PAUSE = 0.0002
# The number of frames between the frame in which a thread may be switched and its `write`.
_DEPTH = 8


def install(process: LocalProcess) -> None:
    """Sets up the notebook support, once, when a client starts in a process that has IPython loaded."""
    shell = _shell()
    if shell is None:
        return
    kernel = getattr(shell, "kernel", None)
    console = Console(process) if kernel is not None else None
    # `ipython script.py` runs a script, not cells.
    if kernel is not None or getattr(getattr(shell, "parent", None), "interact", True):
        process.display.cells = Cells(shell)
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
    """The interactive shell of this process, if there is one."""
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
        # Locks to release when all present content of the pipes is written, and the newest of them.
        self.waiting: list[LockType] = []
        self.last: LockType | None = None
        self.ended = allocate_lock()
        self.ended.acquire()
        process.native.set_consoles(self.writes[0], self.writes[1])
        process.display.console = self
        # A plain thread instead of a `threading.Thread`: kernels show the output of those in the cell that started them.
        start_new_thread(self._carry, ())

    def flush(self, timeout: float) -> None:
        """Waits until the content of the pipes is written, at most `timeout` seconds."""
        done = allocate_lock()
        done.acquire()
        self.last = done
        self.waiting.append(done)
        os.write(self.writes[2], b"f")
        if done.acquire(timeout=timeout):
            done.release()

    def is_behind(self) -> bool:
        """Whether the last requested flush is not complete."""
        return self.last is not None and self.last.locked()

    def close(self) -> None:
        """Restores the destinations of output without a notebook; the thread ends."""
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
            # The requests come first: the output that they wait for is already in the pipes.
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
    # A `print` writes its text and its line end separately: lines of procs must not come between.
    write: Any = getattr(stream, "write", None)
    code = getattr(getattr(write, "__func__", None), "__code__", None)
    for _ in range(_POLITE):
        if code is None or not _in_progress(code):
            break
        sleep(_PAUSE)
    try:
        stream.write(text)
    except Exception as e:  # the stream is closed, or is an object of the user that raises; as for a closed console, the output is lost
        del e


def _in_progress(code: Any) -> bool:
    """Whether another thread is in this function. Between the two writes of one `print`, threads are switched nowhere else."""
    own = get_ident()
    for thread, frame in sys._current_frames().items():  # pyright: ignore[reportPrivateUsage]
        depth = 0 if thread == own else _DEPTH
        while depth and frame is not None:
            if frame.f_code is code:
                return True
            frame, depth = frame.f_back, depth - 1
    return False
