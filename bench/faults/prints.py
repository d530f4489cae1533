"""Programs whose output is more than their console takes."""

from __future__ import annotations

import os
import subprocess
import sys

from bench.faults.program import Fault, rest
from monarch.actor import Actor, current_rank, endpoint, this_host

# A terminal behind a slow link: it shows 100 kB/s.
_TERMINAL = """
import os, time
while data := os.read(0, 4096):
    os.write(1, data)
    time.sleep(0.04)
"""


class Trainer(Actor):
    """Prints a line for each step, and one rank each of its values."""

    @endpoint
    def step(self, rank: int) -> None:
        is_verbose = current_rank().rank == rank
        print("step begins")
        for index in range(1_000_000 if is_verbose else 0):
            print(f"gradient {index} is {1 / (1 + index):.9f} after clipping, {index % 7} of 7 workers agree")


def log_burst() -> None:
    """One rank prints each of its gradients."""
    terminal = subprocess.Popen([sys.executable, "-c", _TERMINAL], stdin=subprocess.PIPE)
    assert terminal.stdin is not None
    os.dup2(terminal.stdin.fileno(), 1)
    trainers = this_host().spawn_procs({"gpus": 3}, name="workers").spawn("trainer", Trainer)
    rest(trainers.step.call(1))


FAULTS = (Fault("log_burst", log_burst, r"trainer rank 1 .*prints far more than the other ranks: [\d.]+ MiB in [\d,]+ lines", 7.0),)
