"""Programs with a rank that is slow to start."""

from __future__ import annotations

import os
import socket
import tempfile
from functools import partial

from bench.faults.actors import Trainer, work
from bench.faults.program import Fault, rest
from monarch.actor import Actor, current_rank, endpoint, this_host

_LONG = 60.0


class Model(Actor):
    """Reads its weights when it is made: those of one rank come from a store that is slow."""

    def __init__(self, slow: int) -> None:
        if current_rank().rank == slow:
            self.read()

    def read(self) -> None:
        ours, self.store = socket.socketpair()
        ours.settimeout(_LONG)
        ours.recv(1)

    @endpoint
    def pid(self) -> int:
        return os.getpid()


def _set_up(folder: str) -> None:
    """Prepares a proc: the first one of them builds what all of a machine need."""
    try:
        os.close(os.open(os.path.join(folder, "lock"), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    work(_LONG)


def slow_constructor() -> None:
    """The constructor of one of four actors waits for its weights."""
    rest(this_host().spawn_procs({"gpus": 4}, name="workers").spawn("model", Model, 1).pid.call())


def slow_setup() -> None:
    """The set-up of one of three procs takes a minute."""
    folder = tempfile.mkdtemp(prefix="faults-")
    procs = this_host().spawn_procs({"gpus": 3}, name="workers", bootstrap=partial(_set_up, folder))
    rest(procs.spawn("trainer", Trainer).pid.call())


FAULTS = (
    Fault(
        "slow_constructor",
        slow_constructor,
        r"model rank 1 .*has been in its constructor for \d+ s, and 3 other ranks are ready; it stands in starts\.py:\d+ in read",
        11.0,
    ),
    Fault(
        "slow_setup",
        slow_setup,
        r"(trainer|workers) rank \d .*has been starting for \d+ s, and 2 other ranks are ready; it \w+ in (starts|actors)\.py:\d+ in \w+",
        11.0,
    ),
)
