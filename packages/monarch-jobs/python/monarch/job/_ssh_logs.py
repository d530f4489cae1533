"""What workers of an `SSHJob` print, copied over ssh: each look adds what has come since to a copy on this machine."""

from __future__ import annotations

import base64
import os
import sys
from typing import TYPE_CHECKING, Any

from monarch.job._commands import time_limit
from monarch.job._trait import LogFile

if TYPE_CHECKING:
    from monarch.job._ssh_launcher import SshLauncher

LOOK_TIMEOUT_S = 20.0
# Of each worker in one look; the next one goes on.
_MOST = 16 << 20
# Arguments: directory, the first byte that is wanted counted from 1, and how many at most. Base64, since a log may hold any bytes.
_TAIL = 'tail -c +"$2" -- "$1/log" | head -c "$3" | base64'
# Workers without an answer that a line has named; `monarch logs -f` looks again and again.
_named: set[str] = set()


def fetch(launcher: SshLauncher, ids: dict[str, Any], folder: str) -> list[LogFile]:
    """Copies below `folder`, one for each worker; a line on stderr names a host that gives nothing."""
    os.makedirs(folder, 0o700, exist_ok=True)
    workers = [worker for worker in ids["workers"] if worker["directory"]]
    found = [LogFile(worker["mesh"], worker["rank"], "out", _path(folder, worker)) for worker in workers]

    def one(worker: dict[str, Any]) -> None:
        with time_limit(LOOK_TIMEOUT_S):
            _append(launcher, worker, _path(folder, worker))

    for worker, error in zip(workers, launcher.of_all(workers, one), strict=True):
        if error is not None and worker["directory"] not in _named:
            _named.add(worker["directory"])
            print(f"monarch: no output of {worker['mesh']}[{worker['rank']}] on {worker['name']}: {error}", file=sys.stderr)
    return found


def _path(folder: str, worker: dict[str, Any]) -> str:
    # A worker that was started again has another directory, and a log of its own.
    return os.path.join(folder, f"{os.path.basename(worker['directory'])}.log")


def _append(launcher: SshLauncher, worker: dict[str, Any], path: str) -> None:
    with open(path, "ab", opener=lambda name, flags: os.open(name, flags | os.O_CLOEXEC, 0o600)) as copy:
        begin = copy.tell() + 1
        result = launcher.commands_of(worker["name"]).run("sh", "-c", _TAIL, "sh", worker["directory"], str(begin), str(_MOST))
        if result.code or result.err:
            raise OSError(result.words or f"exit code {result.code}")
        copy.write(base64.b64decode(result.out))
