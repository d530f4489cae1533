"""A guard that was forked from an interpreter with modules, before its proc had threads. It starts one Python program as a fork of itself.

A proc that is spawned with `Preload` has one. Its program has the modules, and all else as in a fresh interpreter. The environment of the
program has to be that in which the modules were imported, but for variables that the spawn has named, unless a module has read those.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

from monarch._core.extension.command_mark import VARIABLE as MARK
from monarch._core.extension.command_watchdog import Watchdog

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping


class PreparedGuard(NamedTuple):
    """A forked process that waits for its command at the socket."""

    pid: int
    socket: socket.socket
    # The environment of the imports, and the variables that the modules have read.
    environment: Mapping[str, str]
    read: frozenset[str]
    # Variables that may differ.
    varying: frozenset[str]

    def objection(self, environment: Mapping[str, str]) -> str:
        """Why a program with this environment needs an interpreter of its own; empty if it does not."""
        for name in sorted({*self.environment, *environment}):
            if self.environment.get(name) != environment.get(name):
                if name not in self.varying and name != MARK:
                    return f"the variable {name} of the program differs from that of the imports"
                if name in self.read:
                    return f"a module reads the variable {name} at its import"
        return ""


class ForkedWatchdog(Watchdog):
    """A watchdog that is a child of this process already."""

    def __init__(self, pid: int) -> None:
        self._forked = pid
        super().__init__(["prepared guard"], stdin=None, stdout=None, stderr=None)

    def _execute_child(self, *_: Any, **__: Any) -> None:
        self.pid = self._forked
        self._child_created = True


_prepared: list[PreparedGuard] = []
_lock = Lock()


def keep(guard: PreparedGuard) -> None:
    """Keeps the guard for the first program of this process."""
    _prepared.append(guard)


def take(environment: Mapping[str, str]) -> tuple[PreparedGuard | None, str]:
    """The guard of this process, once; or None, with the reason if its modules do not fit a program with this environment."""
    with _lock:
        if not _prepared:
            return None, ""
        objection = _prepared[0].objection(environment)
        return (None, objection) if objection else (_prepared.pop(), "")
