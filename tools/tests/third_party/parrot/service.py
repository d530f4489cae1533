"""Programs of which each host has one: a shared one, one for each job, and failing ones."""

from __future__ import annotations

import os
import threading

from monarch.actor import Actor, Port, endpoint
from monarch.extension import Service


class Perch(Actor):
    """Records the birds that have sat on it."""

    def __init__(self, color: str = "green") -> None:
        self.color = color
        self.birds: list[str] = []

    @endpoint
    def sit(self, bird: str) -> list[str]:
        self.birds.append(bird)
        return self.birds

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def tell(self, port: Port[str]) -> None:
        port.send(self.color)

    @endpoint
    def leave(self) -> None:
        os._exit(7)

    @endpoint(explicit_response_port=True)
    def fall(self, port: Port[None]) -> None:
        raise RuntimeError("fell off")


class Broken(Actor):
    def __init__(self, how: str) -> None:
        if how == "raises":
            raise LookupError("no wood")
        if how == "dies":
            os._exit(8)
        threading.Event().wait()


shared = Service(Perch, shared=True)
own = Service(Perch, arguments={"color": "red"})
broken = Service(Broken, start_seconds=0.5)
