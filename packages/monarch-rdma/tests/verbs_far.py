"""An owner of memory in another process, asked over a socket."""

from __future__ import annotations

import subprocess
import sys
import threading
from multiprocessing.connection import Pipe
from pathlib import Path


class Far:
    """The owner's process; `ask` calls a function of `verbs_owner`.

    The thread that connects a failed queue again asks beside the test: each of them holds the pipe until it has its answer.
    """

    def __init__(self, *devices: str) -> None:
        self._asking = threading.Lock()
        self._pipe, theirs = Pipe()
        descriptor = theirs.fileno()
        argv = [sys.executable, str(Path(__file__).with_name("verbs_owner.py")), str(descriptor), *devices]
        self.process = subprocess.Popen(argv, pass_fds=(descriptor,))
        theirs.close()

    def ask(self, name: str, *arguments: object) -> object:
        with self._asking:
            self._pipe.send((name, arguments))
            ok, answer = self._pipe.recv()
        if not ok:
            raise OSError(answer)
        return answer

    def end(self) -> None:
        self._pipe.close()
        self.process.wait()
