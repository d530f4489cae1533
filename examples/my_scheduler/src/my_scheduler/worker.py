"""A task that is a worker of Monarch: the common part of both backends."""

from __future__ import annotations

import contextlib
import os
import sys

from monarch.job import published_address
from my_scheduler.slots import Slots

_MAIN = "from monarch.extension.cli import main; main()"


def start_worker(slots: Slots, secret: bytes, task: str) -> None:
    """Queues `monarch worker` as this task. The secret is in the task's folder, for this user alone: never in the arguments."""
    place = slots.place(task)
    with open(os.path.join(place, "secret"), "wb", opener=_private) as f:
        f.write(secret)
    argv = [sys.executable, "-c", _MAIN, "worker", "--listen", "tcp://127.0.0.1:0", "--secret-file", os.path.join(place, "secret")]
    slots.submit(task, [*argv, "--publish", os.path.join(place, "worker.json")])


def address_of(slots: Slots, task: str) -> str | None:
    """The address of the worker; None as long as it does not listen."""
    with contextlib.suppress(FileNotFoundError), open(os.path.join(slots.place(task), "worker.json")) as f:
        return published_address(f.read())
    return None


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
