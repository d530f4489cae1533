"""Weights that a program publishes by the proc that runs it, such as a rank of `monarch.spmd.run`.

The proc makes memory that both share, and is the source for readers. The program copies its weights there, and writes the words of their
versions. It sends nothing for a version, except where a request waits for that.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from monarch import extension
from monarch.rdma.errors import RDMAPeerLostError, RDMATimeoutError
from monarch.rdma.weights.arguments import time_limit
from monarch.rdma.weights.memories import Copies
from monarch.rdma.weights.shared_file import SharedFile
from monarch.rdma.weights.updates import Updates
from monarch.rdma.weights.waiting import numbers
from monarch.rdma.weights.words import LOST, Words

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monarch.actor import Future
    from monarch.extension.program import ProgramLink
    from monarch.rdma.weights.table import Numbers, Table

# The entry point of the group `monarch.program`.
HANDLER = "monarch-rdma.weights"
# Seconds for each answer of the proc, if there is no earlier deadline.
_ANSWER = 60.0
# Bytes of a part of `Control`, and the places for readers: only those that were ever used are looked at.
_PART = 4096
_READERS = 1 << 16


class Control:
    """The memory that a program and its proc share besides the weights: three numbers, the words of the memories, and those of readers."""

    def __init__(self, memory: memoryview, count: int) -> None:
        self._numbers = Words(3, memory)
        self.words = Words(count, memory[_PART:])
        self.readers = Words(_READERS, memory[2 * _PART :])
        self._lock = Lock()

    @staticmethod
    def size() -> int:
        return 2 * _PART + 8 * _READERS

    def newest(self) -> int:
        """The newest version; -1 before the first one."""
        return self._numbers[0] - 1

    def awaits(self, version: int | None) -> None:
        """Written by the proc: the least version for which a request waits."""
        self._numbers[1] = 0 if version is None else max(version, 0) + 1

    def used(self, count: int) -> None:
        """Written by the proc: the number of words that readers may have."""
        self._numbers[2] = max(self._numbers[2], count)

    def announced(self) -> list[Numbers]:
        """The words of all readers."""
        return [self.readers.values[: self._numbers[2]]]

    def arrived(self, version: int) -> bool:
        """Written by the program: its newest version. Whether a request may wait for it."""
        with self._lock:
            self._numbers[0] = version + 1
        # The locks on both sides are fences: either the proc sees the version, or this process sees that it is awaited.
        with self._lock:
            awaited = self._numbers[1]
        return 0 < awaited <= version + 1


class ProgramSource(Updates):
    """The copies are in memory that the proc has made; `number` is its number for the source."""

    def __init__(self, link: ProgramLink, name: str, state: Mapping[str, Any], count: int, columns: int, wait: float) -> None:
        self._link = link
        # The proc numbers the sources of each connection, and they end with it.
        self._connection = link.connect()
        self._what = f"publish of weights '{name}'"
        self._number = next(numbers)
        self._control: Control | None = None

        def room(table: Table, size: int, count: int) -> tuple[Words, list[memoryview]]:
            made = self._ask("make", table.packed(), name=name, size=size, count=count, wait=wait)
            control = self._control = Control(SharedFile.at(made["control"]).memory, count)
            return control.words, [SharedFile.at(path).memory for path in made["weights"]]

        try:
            memories = Copies(state, count, columns, room)
        except BaseException as e:
            self.withdraw(e)
            raise
        assert self._control is not None
        super().__init__(name, memories, self._control.announced, wait)

    def publish(self) -> None:
        """Version 0, and requests for it."""
        with self.updating:
            self.begin()
            self.end(0)
        self._ask("publish")

    def begin(self) -> None:
        self._check()
        super().begin()

    def end(self, version: int) -> None:
        self._check()
        super().end(version)

    def arrived(self) -> None:
        assert self._control is not None
        if self._control.arrived(self.version):
            head = {"to": HANDLER, "do": "arrived", "source": self._number}
            self._link.send(head, lambda _: None, connection=self._connection)

    def close(self) -> list[Future[None]]:
        self.is_closed = True
        self._what = f"close of weights '{self.name}'"
        with suppress(ConnectionError):  # the source has ended with the connection
            self._ask("close")
        return []

    def withdraw(self, error: BaseException) -> None:
        """Ends what the proc has made so far. A proc that has not answered is not waited for again: it does it when it goes on."""
        self.is_closed = True
        if isinstance(error, RDMATimeoutError):
            head = {"to": HANDLER, "do": "close", "source": self._number}
            self._link.send(head, lambda _: None, connection=self._connection)
        else:
            with suppress(ConnectionError):
                self._ask("close")

    def _check(self) -> None:
        """Raises if the proc has ended the source: without its connection, no reader gets a version."""
        assert self._control is not None
        if (self._control.words.values == LOST).any():
            what = f"update of weights '{self.name}': the connection of this program to its proc has ended, and this source with it"
            raise RDMAPeerLostError(what, hint="publish again; targets attach again")

    def _ask(self, do: str, blob: bytes = b"", **more: Any) -> dict[str, Any]:
        head = {"to": HANDLER, "do": do, "source": self._number, **more}
        seconds = time_limit(_ANSWER)
        try:
            return self._link.ask(head, blob, timeout=seconds, connection=self._connection).head
        except TimeoutError:
            raise late(self._what, seconds, self._link) from None


def late(what: str, seconds: float, link: ProgramLink, which: str = "") -> RDMATimeoutError:
    """The error of a call whose request, or `which`, the proc has not answered in time."""
    is_stopped = False
    with suppress(OSError, IndexError):
        is_stopped = Path(f"/proc/{link.proc_pid}/stat").read_text().rsplit(")", 1)[1].split()[0] in "Tt"
    text = f"{what}: time-out of {seconds:g} s: the proc of this program, process {link.proc_pid}, has not answered{which}"
    return RDMATimeoutError(text, cause="the proc is stopped, as by SIGSTOP" if is_stopped else "")


def publish(link: ProgramLink, name: str, state: Mapping[str, Any], buffers: int, columns: int, wait: float) -> ProgramSource:
    if buffers != 2:
        raise ValueError(f"buffers={buffers}: readers cannot read the tensors of a program of a run themselves: publish with buffers=2")
    extension.member()  # a fork is refused
    made = ProgramSource(link, name, state, buffers, columns, wait)
    try:
        made.publish()
    except BaseException as e:
        made.withdraw(e)
        raise
    return made
