"""The end of a program that was started with a process group of its own: that of exec plugins and kubectl."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from typing import Any


def end_group(process: subprocess.Popen[Any]) -> None:
    """Kills the group, waits for the process, and closes its pipes."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
