"""A trainer and a loader that wait for each other."""

from __future__ import annotations

import threading
from typing import Any

import monarch.telemetry
from monarch.actor import Actor, endpoint, this_host


class Trainer(Actor):
    def __init__(self) -> None:
        self.at = 0

    @endpoint
    def meet(self, loader: Any) -> None:
        self.loader = loader

    @endpoint
    def step(self) -> int:
        self.at = self.loader.batch.call_one().get()
        return self.at

    @endpoint
    def position(self) -> int:
        return self.at


class Loader(Actor):
    @endpoint
    def meet(self, trainer: Any) -> None:
        self.trainer = trainer

    @endpoint
    def batch(self) -> int:
        return self.trainer.position.call_one().get() + 1


if __name__ == "__main__":
    serving = monarch.telemetry.start(include_dashboard=True, dashboard_port=0, admin_addr="127.0.0.1:0")
    trainer = this_host().spawn_procs(name="trainers").spawn("trainer", Trainer)
    loader = this_host().spawn_procs(name="loaders").spawn("loader", Loader)
    trainer.meet.call_one(loader).get()
    loader.meet.call_one(trainer).get()
    print("url:", str(serving.dashboard_url).partition("/#")[0], flush=True)
    pause = threading.Event()
    while not pause.wait(0.02):
        trainer.step.call_one().get()
