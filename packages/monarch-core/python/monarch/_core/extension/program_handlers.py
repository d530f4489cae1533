"""The answers to requests of a program that a proc runs: entry points of the group `monarch.program`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from monarch._core.config.entry_points import BrokenEntry, load_entry
from monarch._core.extension.program_link import raised

if TYPE_CHECKING:
    from collections.abc import Callable

    from monarch._core.channel.channel import Head, Message
    from monarch._core.hosts.host_mesh import ProcMesh

GROUP = "monarch.program"


@dataclass(frozen=True)
class ProgramMesh:
    """The procs of a run, for a program that has no handle of them: its proc resolves the name.

    `run_id` is None for the run of the program itself; `ranks` None for all ranks.
    """

    run_id: str | None = None
    ranks: tuple[int, ...] | None = None


class RunEnded(Exception):
    """A run has ended, and gets no procs any more; the text is why it has."""


class Program(Protocol):
    """A program that this proc runs."""

    async def procs(self, run_id: str | None) -> list[ProcMesh]:
        """The procs of a run in the order of its ranks, now; empty where there are none so far. `RunEnded` for a run that was there."""
        ...


class ProgramHandler(Protocol):
    """Answers the requests of one connection of a program, on the event loop of its proc. An entry point makes it from the `Program`."""

    async def answer(self, request: Message, /) -> tuple[Head, bytes]:
        """The answer of a request; the program raises what this raises."""
        ...

    def close(self) -> None:
        """The program, or its connection, has ended."""
        ...


class ProgramHandlers:
    """The handlers of one connection, each made with its first request."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._made: dict[str, ProgramHandler] = {}

    async def answer(self, request: Message) -> tuple[Head, bytes]:
        """The answer of the handler that the field `to` names."""
        try:
            return await self._handler(str(request.head["to"])).answer(request)
        except Exception as error:  # any kind: the program raises it
            return raised(error)

    def _handler(self, name: str) -> ProgramHandler:
        made = self._made.get(name)
        if made is None:
            found = load_entry(GROUP, name)
            if found is None or isinstance(found, BrokenEntry):
                why = "no wheel that is installed here has a handler of this name" if found is None else found.describe()
                raise RuntimeError(f"requests of programs to {name!r}: {why}")
            make: Callable[[Program], ProgramHandler] = found.value
            made = self._made[name] = make(self._program)
        return made

    def close(self) -> None:
        """The connection has ended."""
        made, self._made = self._made, {}
        for handler in made.values():
            handler.close()
