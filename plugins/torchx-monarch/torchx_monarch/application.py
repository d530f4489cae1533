"""The directory of one application, which the commands of TorchX and the keeper share.

    request.json    what to run
    lock            held by the keeper as long as it lives; has its machine and its pid
    cancelled       exists once the application was cancelled
    state.json      the states of the replicas; at the end also that of the application
    keeper.log      what the keeper has printed

The lock decides whether an application runs: the kernel releases it however the keeper ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from monarch.extension import python_command

# Applications that have ended and are kept.
_KEPT = 100
_TAIL = 20


def home() -> Path:
    """The directory of all applications of this user."""
    return Path(os.environ.get("MONARCH_HOME") or "~/.monarch").expanduser().absolute() / "torchx"


class Application:
    """One application by its id, whether it exists or not."""

    def __init__(self, app_id: str) -> None:
        self.id = app_id
        self.folder = home() / app_id

    @staticmethod
    def all() -> Iterator[Application]:
        """All applications, oldest first."""
        with contextlib.suppress(FileNotFoundError):
            for folder in sorted(home().iterdir(), key=lambda folder: folder.stat().st_mtime):
                yield Application(folder.name)

    def start(self, request: dict[str, Any]) -> None:
        """Starts the keeper, which inherits the lock."""
        _remove_old()
        self.folder.mkdir(0o700, parents=True)
        self.write("request.json", request)
        with open(self.folder / "lock", "xb") as lock, open(self.folder / "keeper.log", "xb") as log:
            fcntl.flock(lock, fcntl.LOCK_EX)
            keeper = subprocess.Popen(
                python_command("torchx_monarch.keeper", self.id, str(lock.fileno()), "0"),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[lock.fileno()],
                start_new_session=True,
            )
        # The keeper outlives this process: `Popen` is not to warn of that.
        keeper.returncode = 0

    def read(self, name: str) -> dict[str, Any]:
        """A file; empty where it is not written yet."""
        try:
            return json.loads((self.folder / name).read_text() or "{}")
        except FileNotFoundError:
            return {}

    def write(self, name: str, content: dict[str, Any]) -> None:
        path = self.folder / f"{name}.new"
        path.write_text(json.dumps(content))
        path.replace(self.folder / name)

    def runs(self) -> bool:
        """Whether the keeper lives."""
        try:
            with open(self.folder / "lock", "rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except FileNotFoundError:
            return False
        return False

    @property
    def is_cancelled(self) -> bool:
        return (self.folder / "cancelled").exists()

    def state(self) -> dict[str, Any]:
        """`state` and `message` of the application, `replicas` by role, `attempt`."""
        runs = self.runs()  # before the file: the keeper writes it before it ends
        found: dict[str, Any] = {"state": "RUNNING", "message": "", "replicas": {}, "attempt": 0, **self.read("state.json")}
        if not found["replicas"] and runs:
            return {**found, "state": "PENDING"}
        if found["state"] == "RUNNING" and not runs:
            found["state"] = "CANCELLED" if self.is_cancelled else "FAILED"
            found["message"] = f"the process that kept the application has ended\n{tail(self.folder / 'keeper.log')}".strip()
            end_replicas(found["replicas"])
        return found

    def cancel(self) -> None:
        """Ends the application, once; returns at once."""
        machine = self.read("lock").get("machine", socket.gethostname())
        if machine != socket.gethostname():
            raise RuntimeError(f"{self.id} is kept on {machine}: cancel it there")
        if not self.runs() or self.is_cancelled:
            return
        (self.folder / "cancelled").touch()
        keeper = self.read("lock")
        if not keeper:
            return  # it finds the file when it starts
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(keeper["pid"])
            try:
                if self.runs():  # then the descriptor is that of the keeper
                    signal.pidfd_send_signal(descriptor, signal.SIGTERM)
            finally:
                os.close(descriptor)


def end_replicas(replicas: dict[str, list[list[str]]]) -> None:
    """Those without an end of their own have ended with the application."""
    for replica in (replica for of_role in replicas.values() for replica in of_role):
        if replica[0] in ("PENDING", "RUNNING"):
            replica[0] = "CANCELLED"


def _remove_old() -> None:
    for old in list(Application.all())[:-_KEPT]:
        if not old.runs():
            shutil.rmtree(old.folder, ignore_errors=True)


def tail(path: Path) -> str:
    """The last lines of a file, if it is there."""
    try:
        with open(path, "rb") as f:
            f.seek(max(0, f.seek(0, os.SEEK_END) - 4000))
            return "\n".join(f.read().decode(errors="replace").splitlines()[-_TAIL:])
    except OSError:
        return ""
