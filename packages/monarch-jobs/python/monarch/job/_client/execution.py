"""One command on all ranks that were asked for: an actor beside its client that starts it, shows what it prints and knows how it ended."""

from __future__ import annotations

import asyncio
import errno as errnos
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from monarch.actor import Actor, MeshFailure, MonarchError, Point, SupervisionError, concurrent_endpoint, context
from monarch.extension.command import Console, prefixed
from monarch.job._host.command import GRACE, Command, Order, Refusal
from monarch.job.errors import ExecError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from monarch.actor import HostMesh, Port

# Bytes of output in flight to the console, for all ranks together, and for one.
_ON_THEIR_WAY = 64 << 20
_MOST, _LEAST = 256 << 10, 16 << 10
# Seconds for a host to report that a command has begun or ended; then the host is given up.
_REPORT_TIMEOUT_S = 3.0
KILLED, INTERRUPTED = 137, 130


@dataclass(frozen=True)
class Target:
    """Ranks of one mesh: `hosts` have one proc each, or `per_host`; what they are called in front of their lines."""

    hosts: HostMesh
    per_host: dict[str, int]
    order: Order
    ranks: int
    name: str = ""


@dataclass
class _Rank:
    command: Command
    prefix: bytes
    rank: int
    # The proc has reported that the command runs.
    begun: bool = False
    task: asyncio.Task[None] | None = None


@dataclass
class _Outcome:
    code: int = 0
    errors: list[tuple[int, Exception]] = field(default_factory=list[tuple[int, Exception]])


def buffered(ranks: int) -> int:
    """How much a rank may keep until it is read."""
    return max(_LEAST, min(_MOST, _ON_THEIR_WAY // max(1, ranks)))


class Execution(Actor):
    """Owns the procs, so that their failures end up in the result and nowhere else."""

    _is_system_actor = True

    def __init__(self, targets: list[Target], ends_with_reader: bool) -> None:
        self.targets = targets
        self.ends_with_reader = ends_with_reader
        self.console = Console(self._reader_is_gone)
        self.meshes: list[Any] = []
        self.commands: list[Any] = []
        self.ranks: list[_Rank] = []
        self.outcome = _Outcome()
        self.grace = max((target.order.grace for target in targets), default=GRACE)
        self.ending = False

    def __supervise__(self, failure: MeshFailure) -> bool:
        # Reads fail as well, and the result reports that.
        return True

    @concurrent_endpoint
    async def run(self, result: Port[int]) -> None:
        """Sends the largest exit code, or what went wrong, into `result`."""
        try:
            await self._run_all()
            await self.console.close()
            await self._stop_procs()
            if self.outcome.errors:
                _, error = min(self.outcome.errors, key=lambda e: e[0])
                _answer(result, error)
            else:
                _answer(result, self.outcome.code)
        except BaseException as e:
            _answer(result, e if isinstance(e, Exception) else RuntimeError("the client ended before the command did"))
            if not isinstance(e, Exception):
                raise
        context().actor_instance.stop()

    @concurrent_endpoint
    async def interrupt(self) -> None:
        """Ends the command: SIGINT, SIGTERM, SIGKILL. Output goes on until it has ended."""
        self._end()

    @concurrent_endpoint
    async def kill(self) -> None:
        """Ends it at once."""
        for commands in self.commands:
            _quietly(commands.kill.broadcast)
        asyncio.get_running_loop().call_later(_REPORT_TIMEOUT_S, self._give_up)

    # ---- ranks

    async def _run_all(self) -> None:
        self.ranks = [rank for target in self.targets for rank in self._spawn(target)]
        several = len(self.ranks) > 1
        for rank in self.ranks:
            if not several:
                rank.prefix = b""
            rank.task = asyncio.ensure_future(self._follow(rank, several))
        tasks = [rank.task for rank in self.ranks if rank.task is not None]
        await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error

    def _spawn(self, target: Target) -> Iterator[_Rank]:
        procs = target.hosts.spawn_procs(per_host=target.per_host, name="exec")
        self.meshes.append(procs)
        commands: Any = procs.spawn("command", Command, target.order)
        self.commands.append(commands)
        extent = procs.extent
        for rank in range(extent.nelements):
            point = Point(rank, extent)
            full = target.order.coordinates(dict(point))
            number = target.order.number(full)
            prefix = f"[{target.name}{number}] "
            yield _Rank(commands.slice(**point) if point else commands, prefix.encode(), number)

    async def _follow(self, rank: _Rank, several: bool) -> None:
        command: Any = rank.command
        try:
            refusal: Refusal | None = await command.start.call_one()
            if refusal is not None:
                error = cannot_start(refusal)
                self.outcome.errors.append((rank.rank, error))
                if several:  # the others may run for long
                    await self.console.write(2, prefixed(f"{error}\n".encode(), rank.prefix))
                return
            rank.begun = True
            code = await self._show(command, rank.prefix)
        except asyncio.CancelledError:
            if not self.ending:
                raise
            self.outcome.code = max(self.outcome.code, KILLED if rank.begun else INTERRUPTED)
            return
        except SupervisionError as e:
            self.outcome.errors.append((rank.rank, e))
            if several:
                await self.console.write(2, prefixed(f"{e}\n".encode(), rank.prefix))
            return
        self.outcome.code = max(self.outcome.code, code)

    async def _show(self, command: Any, prefix: bytes) -> int:
        coming = command.read.call_one()
        while True:
            chunks, code = await coming
            if code is None:
                # The next output is in flight while this one is written.
                coming = command.read.call_one()
            for stream, data in chunks:
                await self.console.write(stream, prefixed(data, prefix))
            if code is not None:
                return code

    # ---- the end

    def _reader_is_gone(self) -> None:
        if self.ends_with_reader:
            self._end()

    def _end(self) -> None:
        if not self.ending:
            self.ending = True
            for commands in self.commands:
                _quietly(commands.interrupt.broadcast)
            asyncio.get_running_loop().call_later(_REPORT_TIMEOUT_S, self._forget_missing)
            asyncio.get_running_loop().call_later(2 * self.grace + _REPORT_TIMEOUT_S, self._give_up)

    def _forget_missing(self) -> None:
        """A host that is not there yet may never be: it gets only the stop of its procs."""
        for rank in self.ranks:
            if not rank.begun and rank.task is not None:
                rank.task.cancel()

    def _give_up(self) -> None:
        self.ending = True
        for rank in self.ranks:
            if rank.task is not None:
                rank.task.cancel()

    async def _stop_procs(self) -> None:
        stopping = [asyncio.ensure_future(_settled(procs.stop("the command has ended"))) for procs in self.meshes]
        if stopping:
            await asyncio.wait(stopping, timeout=_REPORT_TIMEOUT_S)


async def _settled(future: Any) -> None:
    try:
        await future
    except MonarchError:  # its procs are gone already
        return


def _quietly(send: Any) -> None:
    try:
        send()
    except MonarchError:  # a rank is lost: the others get no message, and end with their procs
        return


def _answer(result: Port[int], outcome: int | Exception) -> None:
    try:
        if isinstance(outcome, int):
            result.send(outcome)
        else:
            result.exception(outcome)
    except (MonarchError, RuntimeError):  # no call waits any more
        return


def cannot_start(refusal: Refusal) -> ExecError:
    """The error that the caller of a command gets."""
    name = errnos.errorcode.get(refusal.errno, str(refusal.errno))
    what = f"cannot start '{refusal.word}' on {refusal.host}: {os.strerror(refusal.errno)} ({name})"
    return ExecError(what, cause=f"command: {' '.join(refusal.command)}", host=refusal.host, command=refusal.command, errno=refusal.errno)
