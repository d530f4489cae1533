"""A process in the namespaces of a host."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path
from typing import Any


class Process(subprocess.Popen[str]):
    """`Popen` of what runs in the host: signals go to it, whose process id out here is `target`, and its end is the end.

    Into a namespace of processes one comes only by a fork, so `nsenter` stands between; `pid` is that one's. Should it end first, the
    kernel kills the process in the host (`setpriv --pdeathsig`).
    """

    def __init__(self, enter: list[str], argv: tuple[str, ...], **options: Any) -> None:
        super().__init__([*enter, "setpriv", "--pdeathsig", "KILL", "--", *argv], text=True, **options)
        self.target = self._child()

    def _child(self) -> int:
        """The process in the host, as soon as it is there; `nsenter` itself if that has ended before."""
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
