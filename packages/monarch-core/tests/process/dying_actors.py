"""Actors that end, wait or are cut off, for tests of deaths. This module imports nothing of the test framework, for which every process
would pay.
"""

from __future__ import annotations

import os
import threading
from typing import Any

from monarch.actor import Actor, Channel, SupervisionError, endpoint, this_host


class Worker(Actor):
    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def hold(self, port: Any) -> None:
        mine, gate = Channel.open()
        port.send(mine)
        gate.recv().get()

    @endpoint
    def cut_off(self) -> int:
        """Closes every socket of this process, as a broken program may, and continues."""
        threading.Thread(target=_close_sockets, daemon=True).start()
        threading.Event().wait()
        return 0

    @endpoint
    def call(self, other: Any) -> str:
        try:
            other.pid.call().get()
        except SupervisionError as e:
            return e.failure.reason.kind
        return "fine"


def _close_sockets() -> None:
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                os.close(int(name))
        except OSError:
            continue


class Spawner(Actor):
    @endpoint
    def spawn_and_die(self) -> None:
        this_host().spawn_procs(per_host={"procs": 2})
        os._exit(0)
