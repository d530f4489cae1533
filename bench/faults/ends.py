"""Programs in which processes or actors end."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from bench.faults.actors import Fragile, Trainer
from bench.faults.program import Fault, go_on, rest
from monarch.actor import SupervisionError, this_host
from monarch.actor.testing import local_hosts


def _failed(call: object) -> None:
    try:
        call.get()  # pyright: ignore
    except SupervisionError:
        return
    raise AssertionError("the call was answered")


def dead_proc() -> None:
    go_on()
    trainers = this_host().spawn_procs({"gpus": 4}, name="workers").spawn("trainer", Trainer)
    os.kill(trainers.slice(gpus=2).pid.call_one().get(), signal.SIGKILL)
    _failed(trainers.step.call())
    rest()


def lost_host() -> None:
    """The agent of one of two hosts is killed."""
    go_on()
    with local_hosts(2) as hosts:
        trainers = hosts.spawn_procs({"gpus": 2}, name="workers").spawn("trainer", Trainer)
        pid = trainers.slice(hosts=1, gpus=0).pid.call_one().get()
        # The agent is the parent of the zygote, which is the parent of its procs.
        os.kill(parent(parent(pid)), signal.SIGKILL)
        _failed(trainers.step.call())
        rest()


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def exception() -> None:
    go_on()
    trainers = this_host().spawn_procs({"gpus": 4}, name="workers").spawn("trainer", Trainer)
    trainers.step.call().get()
    trainers.check.broadcast(1)
    while True:
        try:
            trainers.step.call().get()
        except SupervisionError:
            break
    rest()


def crash_loop() -> None:
    go_on()
    for _ in range(4):
        _failed(this_host().spawn_procs(name="servers").spawn("server", Fragile).use.call_one())
    rest()


FAULTS = (
    Fault("dead_proc", dead_proc, r"trainer rank 2 .*pid \d+.* was killed by signal 9 \(SIGKILL\)"),
    Fault("lost_host", lost_host, r"host \S+ was lost"),
    Fault("exception", exception, r"trainer rank 1 .*raised ValueError: batch 1 has no labels in actors\.py:\d+ in check"),
    Fault("crash_loop", crash_loop, r"server fails again and again: 4 failures"),
)
