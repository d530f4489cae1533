"""Hooks for new procs: one that works, one that raises, and one that hangs."""

from __future__ import annotations

import threading

from monarch.extension import ProcSetup, member

# The values that the hook of this process got from the spawner.
told: list[str] = []


class Works:
    def contribute(self, setup: ProcSetup) -> None:
        setup.set("parrot.greeting", b"hello " + setup.name.encode())
        setup.set_variable("PARROT_CAGE", "open")

    def start(self, setup: ProcSetup) -> None:
        greeting = setup.get("parrot.greeting")
        assert greeting is not None
        told.append(f"{greeting.decode()} {int(member().rank)}")


class Raises:
    def contribute(self, setup: ProcSetup) -> None:
        setup.set_variable("PARROT_DOOR", "lost")
        raise LookupError("the cage is lost")


class Hangs:
    limit = 0.2

    def contribute(self, setup: ProcSetup) -> None:
        threading.Event().wait()


works, raises, hangs = Works(), Raises(), Hangs()
