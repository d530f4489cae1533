"""Programs with too much work for an actor."""

from __future__ import annotations

import threading

from bench.faults.actors import Sink
from bench.faults.program import Fault, rest
from monarch.actor import this_host


def growing_queue() -> None:
    sink = this_host().spawn_procs(name="procs").spawn("sink", Sink)

    def flood() -> None:
        pause = threading.Event()
        while True:
            for _ in range(100):
                sink.push.broadcast(0.05)
            pause.wait(0.1)

    threading.Thread(target=flood, daemon=True).start()
    rest()


FAULTS = (Fault("growing_queue", growing_queue, r"sink .*handles \d+ messages/s while \d+/s arrive: .* wait", 2.0),)
