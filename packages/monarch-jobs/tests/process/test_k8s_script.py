"""The shell around a worker, with each shell of this machine: the secret comes through, and the exit code is right."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch.job.kubernetes.manifests import script

SHELLS = {"sh": ["sh"], "dash": ["dash"], "bash": ["bash"], "busybox": ["busybox", "sh"]}
THERE = [name for name, words in SHELLS.items() if shutil.which(words[0])]
SECRET = b"0123456789abcdef0123456789abcdef"
WAITS = "import signal\nsignal.signal(signal.SIGTERM, lambda *_: exit(0))\nprint('up', flush=True)\nsignal.pause()"


@pytest.fixture(params=THERE)
def shell(request: pytest.FixtureRequest) -> list[str]:
    return SHELLS[request.param]


@pytest.fixture
def join(tmp_path: Path) -> Iterator[str]:
    """The folder that the volume with the secret is in a pod."""
    (tmp_path / "secret").write_bytes(SECRET)
    yield str(tmp_path)


def _command(shell: list[str], words: list[str], join: str = "") -> list[str]:
    _, option, text, *rest = script.wrapped_command(words, insecure=not join)
    return [*shell, option, text.replace(script.MOUNT_PATH, join or script.MOUNT_PATH), *rest]


def _run(command: list[str], **env: str) -> tuple[int, str]:
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **env}, timeout=25)
    return done.returncode, done.stdout


def test_secret_reaches_the_command(shell: list[str], join: str) -> None:
    text = "import os; print(open(os.environ['MONARCH_JOB_SECRET_FILE']).read()); exit(7)"
    assert _run(_command(shell, [sys.executable, "-c", text], join)) == (7, f"{SECRET.decode()}\n")


def test_command_keeps_its_words(shell: list[str]) -> None:
    words = ["a b", "*", "$HOME", "'", '"', "", "\n"]
    code, out = _run(_command(shell, [sys.executable, "-c", "import sys; print(sys.argv[1:])", *words]))
    assert (code, out) == (0, f"{words}\n")


def test_end_by_itself_is_success(shell: list[str]) -> None:
    assert _run(_command(shell, ["true"])) == (0, "")


def test_killed_command_is_a_failure(shell: list[str]) -> None:
    assert _run(_command(shell, [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]))[0] == 128 + signal.SIGKILL


def test_missing_command_is_a_failure(shell: list[str]) -> None:
    assert _run(_command(shell, ["/no/such/worker"]))[0] == 127


def test_deleted_pod_has_not_completed(shell: list[str], join: str) -> None:
    process = subprocess.Popen(_command(shell, [sys.executable, "-c", WAITS], join), stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    process.terminate()
    rest, _ = process.communicate(timeout=25)
    assert (process.returncode, rest) == (128 + signal.SIGTERM, b"")


def test_uid_of_the_pod_is_the_identity(shell: list[str]) -> None:
    text = "import os; print(os.environ.get('MONARCH_SERVICE_PROC_IDS'), os.environ.get('MONARCH_SERVICE_PROC_RANK'))"
    command = _command(shell, [sys.executable, "-c", text])
    assert _run(command, MONARCH_POD_UID="00a10b20-1234-5678-9abc-000000000000") == (
        0,
        "worker<ggga1gb2g> 0\n",
    )
    assert _run(command, MONARCH_POD_UID="") == (0, "None None\n")


def test_home_that_cannot_be_written_is_replaced(shell: list[str], tmp_path: Path) -> None:
    command = _command(shell, [sys.executable, "-c", "import os; print(os.environ['HOME'])"])
    assert _run(command, HOME=str(tmp_path)) == (0, f"{tmp_path}\n")
    assert _run(command, HOME="/no/such/home") == (0, "/tmp\n")
