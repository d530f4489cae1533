"""Cells of an interactive shell: the running cell, the place where unhandled failures are shown, and the interrupt of a cell for them.

A script ends when a failure is not handled. A kernel holds objects of its user and continues: the text of the failure appears in the
running cell, which is interrupted once, or with the next cell. A signal may arrive when its cell has ended. So this module installs a
handler, which runs in the main thread, as cells do, and interrupts only code that belongs to a cell.

Sync code of a cell runs below `run_code` of IPython. A cell in an `await` has no frame of its own on the stack: its kernel then replaces
the handler of SIGINT by one that cancels the cell.
"""

from __future__ import annotations

import sys
from _thread import allocate_lock, get_ident

from monarch._core.errors.complaint import complain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

# The number of reports that one cell shows in full. Further reports are cut to their first line: all ranks of a large mesh may fail at
# once.
_WHOLE = 3
# Functions of IPython that are on the stack while a cell runs, and the ends of their files' names.
_CELL_FRAMES = (("run_code", "interactiveshell.py"), ("__call__", "async_helpers.py"))


class Cells:
    """The cells of one shell."""

    def __init__(self, shell: Any) -> None:
        import threading

        self.main = threading.main_thread().ident
        # The number of cells begun; the number of the last interrupted cell; the reports shown in the running cell.
        self.number = 0
        self.interrupted = -1
        self.shown = 0
        # Reports for the next cell.
        self.waiting: list[tuple[str, str]] = []
        # The loop of the running cell, if it has one.
        self.loop: Any = None
        self.lock = allocate_lock()
        self.running = False
        if get_ident() == self.main:
            self._listen()
            # The client starts in a cell: that cell is running.
            self.running = _is_below_cell(sys._getframe())  # pyright: ignore[reportPrivateUsage]
            self.loop = _running_loop()
        shell.events.register("pre_run_cell", self._begin)
        shell.events.register("post_run_cell", self._end)

    def show(self, head: str, report: str) -> None:
        """Shows a failure in the running cell, or with the next one."""
        with self.lock:
            if not self.running:
                self.waiting.append((head, report))
                return
            text = self._text(head, report)
        complain(text)

    def interrupt(self) -> None:
        """Interrupts the running cell, once. From any thread."""
        from monarch._core.process.interrupt import interrupt_by

        with self.lock:
            if not self.running or self.interrupted == self.number:
                return
            self.interrupted = self.number
        interrupt_by(self._send)

    def _send(self) -> None:
        import signal

        from monarch._core.process.interrupt import INTERRUPT_SIGNAL

        # Without this module's handler the signal would end the kernel.
        if self.main is not None and signal.getsignal(INTERRUPT_SIGNAL) == self._on_signal:
            signal.pthread_kill(self.main, INTERRUPT_SIGNAL)

    def _text(self, head: str, report: str) -> str:
        self.shown += 1
        return f"{head}\n{report if self.shown <= _WHOLE else report.partition(chr(10))[0]}"

    def _listen(self) -> None:
        import signal

        from monarch._core.process.interrupt import INTERRUPT_SIGNAL, interrupted

        if signal.getsignal(INTERRUPT_SIGNAL) in (signal.SIG_DFL, interrupted):
            signal.signal(INTERRUPT_SIGNAL, self._on_signal)

    def _begin(self, *_: Any) -> None:
        # Some kernels run cells on other threads beside this one; those cannot be interrupted.
        if get_ident() != self.main:
            return
        self._listen()
        with self.lock:
            self.number += 1
            self.shown = 0
            self.running = True
            self.loop = _running_loop()
            waiting, self.waiting = self.waiting, []
            texts = [self._text(head, report) for head, report in waiting]
        for text in texts:
            complain(text)

    def _end(self, *_: Any) -> None:
        if get_ident() == self.main:
            with self.lock:
                self.running = False
                self.loop = None

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """Handles the signal in the main thread, maybe long after it was sent."""
        import signal

        if not self.running or self.interrupted != self.number:
            return
        handler = signal.getsignal(signal.SIGINT)
        if not _is_below_cell(frame) and (not callable(handler) or handler is signal.default_int_handler):
            return
        try:
            if callable(handler):
                handler(signal.SIGINT, frame)
            else:
                raise KeyboardInterrupt
        finally:
            if self.loop is not None:
                # The loop still sleeps, and would see the interrupt only with its next event.
                self.loop.call_soon_threadsafe(_nothing)


def _nothing() -> None:
    return


def _running_loop() -> Any:
    module = sys.modules.get("_asyncio")
    return None if module is None else module._get_running_loop()


def _is_below_cell(frame: FrameType | None) -> bool:
    while frame is not None:
        code = frame.f_code
        if any(code.co_name == name and code.co_filename.endswith(file) for name, file in _CELL_FRAMES):
            return True
        frame = frame.f_back
    return False
