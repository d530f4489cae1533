"""A process in the namespaces of a host."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

_ENTER = Path(__file__).with_name("enter.py")


class Process(subprocess.Popen[str]):
    """A `Popen` for a process in the host: signals go to that process, whose process id outside is `target`, and its end is the end.

    `pid` is that of `enter.py`, the process in between.
    """

    def __init__(self, first: int, argv: tuple[str, ...], **options: Any) -> None:
        super().__init__([sys.executable, "-IS", str(_ENTER), str(first), *argv], text=True, **options)
        self.target = self._child()

    def _child(self) -> int:
        """The process in the host, as soon as it exists; `enter.py` itself if that has ended before."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        while os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            if words := children.read_text().split():
                return int(words[0])
            os.sched_yield()
        return self.pid

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.target, sig)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)
