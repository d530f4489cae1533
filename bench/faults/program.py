"""What the programs of the faults share: readiness, and life until the runner closes their stdin."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, NamedTuple, NoReturn

import monarch.actor
from monarch.actor import Future

READY = "ready"


class Fault(NamedTuple):
    """A program with a fault. `cause` is a regular expression of the expected first line; empty for a healthy job.

    `after` is the time in seconds from readiness until the fault can be seen, such as the limit after which a process is unresponsive.
    `needs` is a folder that only root may change, `module` one that is not always installed; `lacks` gives the reason why a real component
    cannot be started here, empty if it can.
    """

    name: str
    run: Callable[[], object]
    cause: str
    after: float = 0.5
    needs: str = ""
    module: str = ""
    lacks: Callable[[], str] = lambda: ""

    def missing(self) -> str:
        """What this machine or user lacks for the program; empty if it can run."""
        if self.module and find_spec(self.module) is None:
            return self.module
        if self.needs and not (os.geteuid() == 0 and os.path.isdir(self.needs)):
            return f"root, and {self.needs}"
        return self.lacks()

    def is_possible(self) -> bool:
        return not self.missing()


def go_on() -> None:
    """The script notices failures by its calls, as one that retries does."""
    monarch.actor.unhandled_fault_hook = lambda failure: None


def ready(client: int | None = None, within: tuple[str, ...] = ()) -> None:
    """Reports that the fault is there: the pid of the client, and the prefix of a command that runs on its host."""
    print(READY, json.dumps([client or os.getpid(), *within]), flush=True)


def rest(call: Future[Any] | None = None) -> NoReturn:
    """Reports readiness, and lives until stdin is closed; the main thread waits for a call, as scripts do."""
    until_closed()
    ready()
    if call is not None:
        call.get()
    threading.Event().wait()
    raise AssertionError("no code sets the event")


def forever(step: Callable[[], object]) -> NoReturn:
    """Runs a step again and again in the main thread, until stdin is closed; reports readiness after the first one."""
    until_closed()
    step()
    ready()
    while True:
        step()


def until_closed() -> None:
    """Ends the process when stdin is closed."""
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), name="stdin", daemon=True).start()
