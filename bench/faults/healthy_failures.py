"""Healthy jobs in which things end or fail as their programs expect: deadlines, errors, restarts, stops."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from typing import Any

from bench.faults.actors import Trainer
from bench.faults.program import Fault, forever, rest
from monarch.actor import Actor, DeadlineExceeded, MeshFailure, MonarchError, deadline, endpoint, this_host, this_proc


class Keeper(Actor):
    """Keeps one worker alive."""

    def __init__(self) -> None:
        self.replaced = threading.Event()
        self.start()

    def start(self) -> None:
        self.worker = this_host().spawn_procs(name="workers").spawn("trainer", Trainer)

    def __supervise__(self, failure: MeshFailure) -> bool:
        self.start()
        self.replaced.set()
        return True

    @endpoint
    def current(self) -> Any:
        return self.worker

    @endpoint
    def has_replaced(self) -> bool:
        return self.replaced.is_set()


def deadlines() -> None:
    """Calls whose deadline passes, which the caller handles."""
    trainers = this_host().spawn_procs({"gpus": 2}, name="workers").spawn("trainer", Trainer)

    def once() -> None:
        with contextlib.suppress(DeadlineExceeded, TimeoutError), deadline(0.05):
            trainers.step.call(0.2).get()
        trainers.step.call(0.01).get()

    forever(once)


def timeouts() -> None:
    """A client that looks at a long call every fifth of a second."""
    trainers = this_host().spawn_procs({"gpus": 2}, name="workers").spawn("trainer", Trainer)
    call = trainers.step.call(100.0)

    def once() -> None:
        with contextlib.suppress(TimeoutError):
            call.get(timeout=0.2)

    forever(once)


def replaced_worker() -> None:
    """A supervisor that has replaced a killed worker, and goes on with the new one."""
    keeper = this_proc().spawn("keeper", Keeper)
    os.kill(keeper.current.call_one().get().pid.call_one().get(), signal.SIGKILL)
    pause = threading.Event()
    while not keeper.has_replaced.call_one().get():
        pause.wait(0.05)
    worker = keeper.current.call_one().get()
    forever(lambda: worker.step.call_one(0.01).get())


def killed_and_stopped() -> None:
    """A script that has handled the end of a proc, stopped the mesh, and goes on with another one."""
    with contextlib.suppress(MonarchError), this_host().spawn_procs(name="first") as procs:
        trainer = procs.spawn("trainer", Trainer)
        os.kill(trainer.pid.call_one().get(), signal.SIGKILL)
        trainer.step.call_one(1.0).get()
    trainers = this_host().spawn_procs({"gpus": 2}, name="second").spawn("trainer", Trainer)
    forever(lambda: trainers.step.call(0.01).get())


def restarts() -> None:
    """Meshes of one name that the script stops and starts again."""
    kept = this_host().spawn_procs(name="kept").spawn("trainer", Trainer)

    def once() -> None:
        procs = this_host().spawn_procs({"gpus": 2}, name="short")
        procs.spawn("trainer", Trainer).step.call(0.01).get()
        procs.stop("a new configuration").get()
        kept.pid.call_one().get()

    forever(once)


def stopped() -> None:
    """A script that has stopped all of its meshes, and waits."""
    procs = this_host().spawn_procs({"gpus": 2}, name="workers")
    procs.spawn("trainer", Trainer).pid.call().get()
    procs.stop().get()
    rest()


HEALTHY = (
    Fault("deadlines", deadlines, "", 1.0),
    Fault("timeouts", timeouts, "", 6.0),
    Fault("replaced_worker", replaced_worker, "", 1.0),
    Fault("killed_and_stopped", killed_and_stopped, "", 1.0),
    Fault("restarts", restarts, "", 1.0),
    Fault("stopped", stopped, "", 1.0),
)
