"""A service for tests: an actor of a module that workers import, and its declaration in the form of a wheel."""

from __future__ import annotations

import os
import tempfile
import threading
from contextlib import suppress
from typing import Any

from monarch._core.config import entry_points
from monarch.actor import Actor, Channel, Port, PortReceiver, endpoint
from monarch.extension import Request, RequestError, Service, ask, member, places, reach, serve


class Perch(Actor):
    def __init__(self, color: str = "green", how: str = "") -> None:
        if how == "raises":
            raise LookupError("no wood")
        if how == "dies":
            os._exit(8)
        if how == "type":
            os.path.join(None)  # type: ignore
        if how == "hangs":
            threading.Event().wait()
        if how == "waits":
            with open(self.place("late")) as pipe:
                pipe.read()
        self.color = color
        self.birds: list[str] = []

    @staticmethod
    def place(name: str) -> str:
        """The path of a pipe that both of its ends open."""
        path = f"{tempfile.gettempdir()}/monarch-perch-{os.getuid()}-{name}"
        with suppress(FileExistsError):
            os.mkfifo(path)
        return path

    @classmethod
    def go_on(cls, name: str) -> None:
        """Ends the wait of the constructor."""
        with open(cls.place(name), "w"):
            os.unlink(cls.place(name))

    @endpoint
    def sit(self, bird: str) -> list[str]:
        self.birds.append(bird)
        return self.birds

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def double(self, value: Any) -> Any:
        return value + value

    @endpoint
    def forward(self, other: Any, bird: str) -> list[str]:
        """Calls an actor of the job that requests it."""
        return list(other.sit.call(bird).get().values())[0]

    @endpoint
    def send(self, port: Port[str]) -> None:
        port.send(self.color)

    @endpoint
    def listen(self) -> Port[str]:
        port, self.receiver = Channel[str].open()
        return port

    @endpoint
    def heard(self) -> str:
        receiver: PortReceiver[str] = self.receiver
        return receiver.recv().get(timeout=20)

    @endpoint
    def leave(self) -> None:
        os._exit(7)

    @endpoint
    def fall(self) -> None:
        raise RuntimeError("fell off")


class Asker(Perch):
    """A service, or an actor of a proc, that other processes call."""

    def __init__(self, color: str = "green") -> None:
        super().__init__(color)
        serve("perch.echo", lambda request: bytes(reversed(request.body)))
        serve("perch.never", self.keep)

    @endpoint
    def places(self) -> tuple[int, list[tuple[int, int]]]:
        return int(member().proc), [(int(job), int(host)) for job, host in places()]

    @endpoint
    def ask(self, proc: int, there: list[tuple[int, int]]) -> bytes:
        """Sends a request to a process of which it has no handle."""
        mine = dict(places())
        job, host = next(place for place in there if place[0] in mine)
        reach(proc, host, job)
        return ask(proc, "perch.echo", b"abc").get(timeout=20)

    def keep(self, request: Request) -> None:
        request.defer()
        self.kept = request

    @endpoint
    def wait_for(self, proc: int, there: list[tuple[int, int]]) -> None:
        """Sends a request that is never answered, through the job that both have served last."""
        mine = dict(places())
        job, host = next(place for place in reversed(there) if place[0] in mine)
        reach(proc, host, job)
        self.waiting = ask(proc, "perch.never", b"")

    @endpoint
    def outcome(self) -> str:
        try:
            return repr(self.waiting.get(timeout=20))
        except RequestError as e:
            return f"{e.code}: {e.end.describe() if e.end else e}"

    @endpoint
    def ask_on(self, proc: int, host: int) -> bytes:
        reach(proc, host)
        return ask(proc, "perch.echo", b"abc").get(timeout=20)


def declare(name: str, service: Any = None, **options: Any) -> str:
    """Declares a service like the entry point of an installed wheel. `service`: a class other than `Perch`, or an invalid object."""
    cls = service if isinstance(service, type) else Perch
    value = Service(cls, **options) if service in (None, cls) else service
    entry_points._known[("monarch.service", name)] = entry_points.LoadedEntry("monarch.service", name, "wheel 1.0", "wheel:x", value)
    return name
