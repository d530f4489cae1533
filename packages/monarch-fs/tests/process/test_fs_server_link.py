"""How the daemon learns of the end of a mount server."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from monarch.extension.channel import listen
from monarch.fs._daemon.mount_record import SOCKET
from monarch.fs._daemon.server_link import ServerLink, is_running
from tools.frozen import freeze

# The first thread ends and another one does not: the state of a killed process with a thread that waits in the kernel.
_HALF_ENDED = """
import ctypes, threading
threading.Thread(target=threading.Event().wait).start()
print("ready", flush=True)
ctypes.CDLL(None).syscall(60, 0)
"""
if os.uname().machine != "x86_64":
    _HALF_ENDED = _HALF_ENDED.replace("60", "93")


def started(code: str, *argv: str) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-S", "-c", code, *argv], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


def ended(folder: Path, process: subprocess.Popen[str]) -> tuple[str, bool]:
    async def wait() -> tuple[str, bool]:
        link = ServerLink(folder, lambda _, __: None)
        link._watch(process.pid)
        try:
            return await asyncio.wait_for(link.ended, 20), link.killed
        finally:
            process.kill()
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()

    listener = listen(folder, SOCKET)
    try:
        return asyncio.run(wait())
    finally:
        listener.close()
        process.returncode = 0
        assert process.stdout is not None
        process.stdout.close()


def test_killed_server_that_cannot_end_is_noticed(tmp_path: Path) -> None:
    process = started(_HALF_ENDED)
    assert ended(tmp_path, process) == (f"the mount server {process.pid} was killed", True)
    # Its last thread was killed at the end; the descriptor of the loop that would have reaped it is closed.
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:  # polls: the kernel ends the process
        try:
            if os.waitpid(process.pid, os.WNOHANG)[0]:
                break
        except ChildProcessError:
            break


@pytest.mark.parametrize(("number", "how"), [(signal.SIGKILL, "was killed by SIGKILL"), (signal.SIGTERM, "was killed by SIGTERM")])
def test_end_by_a_signal_is_named(tmp_path: Path, number: signal.Signals, how: str) -> None:
    process = started("import signal; print('ready', flush=True); signal.pause()")
    process.send_signal(number)
    assert ended(tmp_path, process) == (f"the mount server {process.pid} {how}", number == signal.SIGKILL)


def test_server_of_a_folder_is_found(tmp_path: Path) -> None:
    assert not is_running(tmp_path)
    process = started("import signal; print('ready', flush=True); signal.pause()", "monarch.fs._daemon.mount_server", str(tmp_path))
    try:
        assert is_running(tmp_path) and not is_running(tmp_path / "other")
        freeze(process.pid)
        assert is_running(tmp_path)
    finally:
        process.kill()
        process.communicate()
    assert not is_running(tmp_path)
