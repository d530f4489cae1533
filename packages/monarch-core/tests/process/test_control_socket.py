"""The place of a client's control socket, and its removal."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

from fresh_script import Script, run

from monarch._core._native import control_directory
from monarch._core.observe import inspection

# Seconds: older than any socket that is bound and does not listen yet.
OLD_S = 60

CLIENT = """
    from monarch._core.process.current import current_process
    this_host().spawn_procs().initialized.get()
    say(f"agent {current_process().agent_uid:016x}")
"""


def file_of(script: Script) -> Path:
    agent = script.until("agent").split()[1]
    return Path(control_directory()) / f"monarch-{agent}"


def test_directory_keeps_other_users_out():
    script = Script(CLIENT + "    signal.pause()")
    try:
        file = file_of(script)
        mode = os.lstat(control_directory())
        assert stat.S_ISDIR(mode.st_mode) and stat.S_IMODE(mode.st_mode) == 0o700 and mode.st_uid == os.geteuid()
        assert stat.S_ISSOCK(os.lstat(file).st_mode)
        assert int(file.name.removeprefix("monarch-"), 16) in inspection.agents()
        if os.geteuid() == 0:
            connect = f"import os, socket; os.setuid(65534); socket.socket(socket.AF_UNIX).connect({str(file)!r})"
            tried = subprocess.run([sys.executable, "-ISc", connect], capture_output=True, text=True)
            assert tried.returncode == 1 and "PermissionError" in tried.stderr, tried.stderr
    finally:
        script.close()


def test_socket_goes_with_its_client():
    script = Script(CLIENT)
    file = file_of(script)
    script.end().assert_clean()
    assert not file.exists()


def test_socket_of_a_killed_client_is_removed_later():
    script = Script(CLIENT + "    signal.pause()")
    try:
        file = file_of(script)
        script.send(signal.SIGKILL)
        script.wait_for_all()
        assert file.exists()
        assert int(file.name.removeprefix("monarch-"), 16) not in inspection.agents()
        past = os.lstat(file).st_mtime - OLD_S
        os.utime(file, (past, past), follow_symlinks=False)
        run(CLIENT).assert_clean()
        assert not file.exists()
    finally:
        script.close()
