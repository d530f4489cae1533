"""A producer that is faster than its consumer."""

from __future__ import annotations

import threading
import time

import monarch.telemetry
from monarch.actor import Actor, endpoint, this_host


class Sink(Actor):
    @endpoint
    def push(self, batch: int) -> None:
        time.sleep(0.05)  # sleeps: the work of the consumer


if __name__ == "__main__":
    serving = monarch.telemetry.start(include_dashboard=True, dashboard_port=0, admin_addr="127.0.0.1:0")
    sink = this_host().spawn_procs(name="sinks").spawn("sink", Sink)
    print("url:", str(serving.dashboard_url).partition("/#")[0], flush=True)
    pause = threading.Event()
    batch = 0
    while not pause.wait(0.002):
        batch += 1
        sink.push.broadcast(batch)
