"""The watchdog of a guard, in the process that started it: a child that is continued when it is stopped, and reaped in every case.

The event loop of the command waits for it. If that loop has been closed, a thread does.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from threading import Thread

from monarch._core.extension.command_mark import kill_marked

# Seconds between two checks of a watchdog, which the command may have stopped.
LOOK = 1.0


class Watchdog(subprocess.Popen[bytes]):
    """The watchdog process. `mark` is that of its command, `folder` the folder of a script that came with it."""

    mark = ""
    folder: str | None = None

    def __del__(self) -> None:
        # The command reaps its watchdog even if no code waits for it any more: a warning would be wrong.
        return

    def continue_if_stopped(self) -> None:
        try:
            if os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG) is not None:
                self.send_signal(signal.SIGCONT)
        except ChildProcessError:  # the watchdog has ended, and this process ignores SIGCHLD
            return

    def kill_all(self) -> None:
        """Kills this process, the guard and all processes with the mark of the command; returns when they have ended."""
        kill_marked(self.mark)
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)

    def reap(self, seconds: float) -> Thread | None:
        """Waits for the end on a thread, which begins `kill_all` after `seconds`.

        None if no thread can start, because this interpreter ends: the watchdog ends by itself.
        """
        if sys.is_finalizing():
            return None
        thread = Thread(target=self._reap, args=(seconds,), name="monarch-watchdog", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no thread is left, or this interpreter is about to end
            return None
        return thread

    def _reap(self, seconds: float) -> None:
        while seconds > 0:
            try:
                self.wait(min(seconds, LOOK))
                break
            except subprocess.TimeoutExpired:
                seconds -= LOOK
                self.continue_if_stopped()
        if self.poll() is None or self.returncode < 0:
            self.kill_all()
            self.wait()
