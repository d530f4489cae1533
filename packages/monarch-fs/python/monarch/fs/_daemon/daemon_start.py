"""How a client reaches the daemon, and starts it where none runs."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import time
from pathlib import Path

from monarch.extension import python_command
from monarch.extension.channel import connect, make_private
from monarch.fs._daemon.daemon_folder import PRIVATE_HINT, SOCKET
from monarch.fs.errors import FsError

# Seconds for an interpreter to start and to import the daemon, on a loaded machine.
START_SECONDS = 30.0
# Variables of the environment that a daemon takes from its first client.
_VARIABLES = ("HOME", "LD_LIBRARY_PATH", "MONARCH_HOME", "PATH", "PYTHONHOME", "PYTHONPATH", "TMPDIR", "USER", "VIRTUAL_ENV")


def reach_daemon(folder: Path) -> socket.socket:
    """A connection to the daemon of the folder. `FsError` where none can be started."""
    make_private(folder, PRIVATE_HINT)
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            return connect(folder, SOCKET)
        except (FileNotFoundError, ConnectionRefusedError):
            pass
        except OSError as e:
            raise FsError(f"the daemon cannot be reached: {e.strerror or e}", path=str(folder)) from None
        if time.monotonic() > deadline:
            raise FsError(f"the daemon did not start within {START_SECONDS:g} s; its log is {folder / 'log'}", path=str(folder))
        _start(folder, deadline)


def _start(folder: Path, deadline: float) -> None:
    reader, writer = os.pipe()
    try:
        environment = {key: value for key, value in os.environ.items() if key in _VARIABLES or key.startswith(("LC_", "LANG"))}
        with open(folder / "start.log", "wb") as errors:
            process = subprocess.Popen(
                python_command("monarch.fs._daemon.daemon", str(folder), str(writer)),
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                cwd="/",
                env=environment,
                pass_fds=(writer,),
                start_new_session=True,
            )
        os.close(writer)
        writer = -1
        # The daemon writes when it listens, or when another daemon runs; a daemon that fails writes nothing.
        failed = bool(select.select([reader], [], [], max(0.0, deadline - time.monotonic()))[0]) and not os.read(reader, 1)
        process.wait()
    finally:
        os.close(reader)
        if writer >= 0:
            os.close(writer)
    if failed:
        text = ""
        with contextlib.suppress(OSError):
            text = (folder / "start.log").read_text(errors="replace").strip().rpartition("\n")[2][-1000:]
        raise FsError(f"the daemon ended when it was started: {text or 'its log is ' + str(folder / 'log')}", path=str(folder))
