"""Signals that a thread of their own handles at once, whatever the main thread waits for.

A handler in Python runs in the main thread, when that thread is next in the interpreter. Before that it waits, in a system call or for a
lock: a signal that the kernel has given to another thread, or that came just before the wait, interrupts nothing. A handler that takes
a lock may also wait for the very code that it interrupts. The interpreter's own handler, in C, writes the number of each signal into a pipe
at once, and the thread reads it. While the main thread waits in core, that pipe is core's, and the handler in Python runs at once.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import FrameType
    from typing import Any, Self


class SignalThread:
    """Calls `handle` with the number of each of these signals, at least once for each, until it is closed.

    Made and closed in the main thread; `ValueError` elsewhere. A signal that is ignored then, as by `nohup`, stays ignored.
    """

    def __init__(self, numbers: Iterable[int], handle: Callable[[int], object]) -> None:
        self._handle = handle
        self._numbers = {int(number) for number in numbers if signal.getsignal(number) != signal.SIG_IGN}
        self._read, self._write = os.pipe()
        try:
            os.set_blocking(self._write, False)
            self._woken_before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        except BaseException:
            os.close(self._read)
            os.close(self._write)
            raise
        self._before: dict[int, Any] = {number: signal.signal(number, self._pass_on) for number in self._numbers}
        self._thread = threading.Thread(target=self._run, daemon=True, name="monarch-signals")
        self._thread.start()

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        try:
            os.write(self._write, bytes([number]))
        except BlockingIOError:  # the thread has enough to read
            return

    def _run(self) -> None:
        while data := os.read(self._read, 64):
            for number in data:
                if number in self._numbers:
                    self._call(number)
        os.close(self._read)

    def _call(self, number: int) -> None:
        try:
            self._handle(number)
        except Exception as e:  # the next signal is handled all the same
            sys.excepthook(type(e), e, e.__traceback__)

    def close(self) -> None:
        """Restores the handlers that were there before; returns when no call of `handle` is under way."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._woken_before)
        os.close(self._write)
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
