"""An uploader that keeps a lock while it waits."""

from __future__ import annotations

import threading

import monarch.telemetry
from monarch.actor import Actor, endpoint, this_host


class Trainer(Actor):
    def __init__(self) -> None:
        self.lock, self.wanted = threading.Lock(), threading.Event()
        threading.Thread(target=self.upload, name="uploader", daemon=True).start()

    def upload(self) -> None:
        while True:
            with self.lock:
                self.wanted.wait()
                self.wanted.clear()

    @endpoint
    def step(self) -> None:
        with self.lock:
            pass
        self.wanted.set()


if __name__ == "__main__":
    serving = monarch.telemetry.start(include_dashboard=True, dashboard_port=0, admin_addr="127.0.0.1:0")
    trainer = this_host().spawn_procs(name="trainers").spawn("trainer", Trainer)
    print("url:", str(serving.dashboard_url).partition("/#")[0], flush=True)
    pause = threading.Event()
    while not pause.wait(0.02):
        trainer.step.call_one().get()
