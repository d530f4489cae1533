"""Faults of a chaos run that need more than one message: forks, thread limits, ends of connections, dropped receivers.

Decisions are drawn from the seed even if the machine cannot carry them out, so that a seed makes the same other decisions everywhere.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from chaos_actors import Bystander
from chaos_hosts import CUTS
from chaos_limits import TaskLimit, controllers

from monarch.actor import Channel, SpawnError, SupervisionError

if TYPE_CHECKING:
    from chaos_script import Chaos

# Actors that are spawned on a process without threads, and seconds for their calls.
CRAMPED, CALL_TIMEOUT = 3, 20.0
# Values that an actor sends to a port, the most that are received, and the seconds to wait for each.
POURED, TAKEN, TAKE_S = 50, 5, 0.5
# A part of the names of meshes whose failures are expected.
EXPECTED = "bystander"


class Faults:
    """Applies the faults to the meshes of a run."""

    def __init__(self, chaos: Chaos) -> None:
        self.chaos = chaos
        self.has_limits = controllers() is not None
        self.bystanders = 0

    def fork(self) -> None:
        """An endpoint forks, and its child returns, raises or exits in it."""
        chaos = self.chaos
        mesh, how = chaos.some_mesh(living=True), chaos.rng.choice(("return", "raise", "exit"))
        if mesh is not None:
            chaos.send("call_one", mesh, [chaos.rng.choice(mesh.living())], "fork", how)

    def cramp(self) -> None:
        """Actors are spawned on a process that can start no more threads: they may fail, the process and its other actors live."""
        chaos = self.chaos
        mesh, spare = chaos.some_mesh(living=True), chaos.rng.choice((0, 1))
        if mesh is None or not self.has_limits:
            return
        rank = chaos.rng.choice(mesh.living())
        chaos.watch.wait_for(0)
        if mesh.handle is None or mesh.procs.handle is None:
            return
        try:
            pid = chaos.handle_of(mesh, [rank]).pid.call_one().get(timeout=CALL_TIMEOUT)
        except SupervisionError:  # a death that the script cannot know
            return
        procs = mesh.procs.handle.slice(procs=mesh.base[rank])
        with TaskLimit(pid, spare):
            for _ in range(CRAMPED):
                self._spawn_cramped(procs)
        # By the usual rules these actors live, so they answer.
        chaos.send("call_one", mesh, [rank])

    def _spawn_cramped(self, procs: Any) -> None:
        self.bystanders += 1
        made = procs.spawn(f"{EXPECTED}{self.bystanders}", Bystander)
        try:
            if made.echo.call_one(1).get(timeout=CALL_TIMEOUT) != 1:
                self.wrong("an actor on a process without threads gave a wrong answer")
        except SpawnError:
            pass
        except (SupervisionError, TimeoutError) as e:
            self.wrong(f"an actor whose thread could not be started: {type(e).__name__}: {e}")
        try:
            made.stop().get(timeout=CALL_TIMEOUT)
        except (SupervisionError, TimeoutError) as e:
            if not isinstance(e, SpawnError):
                self.wrong(f"the stop of an actor whose thread could not be started: {type(e).__name__}: {e}")

    def wrong(self, text: str) -> None:
        self.chaos.history.add("wrong", text=text.splitlines()[0])

    def cut(self) -> None:
        """Connections to a host end in order, or are reset."""
        kind, number = self.chaos.rng.choice(CUTS), self.chaos.rng.randrange(1 << 16)
        if self.chaos.hosts is not None:
            self.chaos.hosts.cut(kind, number % self.chaos.hosts.count)

    def pour(self) -> None:
        """An actor sends to a port whose receiver takes some of the values, and is dropped."""
        chaos = self.chaos
        mesh, taken = chaos.some_mesh(living=True), chaos.rng.randrange(TAKEN)
        if mesh is None:
            return
        rank = chaos.rng.choice(mesh.living())
        port, receiver = Channel.open()
        chaos.send("call_one", mesh, [rank], "pour", port, POURED)

        async def take(receiver: Any) -> None:
            for _ in range(taken):
                try:
                    await asyncio.wait_for(receive(receiver), TAKE_S)
                except (TimeoutError, SupervisionError):
                    return

        async def receive(receiver: Any) -> Any:
            return await receiver.recv()

        asyncio.run_coroutine_threadsafe(take(receiver), chaos.loop)

    def abandon(self) -> None:
        """No process waits for the answers of a call; only the first answer of a stream is read."""
        chaos = self.chaos
        mesh, adverb = chaos.some_mesh(living=True), chaos.rng.choice(("call", "stream", "choose"))
        if mesh is None or mesh.handle is None:
            return
        ranks = chaos.some_ranks(len(mesh.base))
        n = chaos.history.begin("abandon", mesh.id, ranks)
        sent = getattr(chaos.handle_of(mesh, ranks).work, adverb)("root", n)
        if adverb == "stream":
            # One of several futures is pending when the others are dropped.
            list(sent)
        del sent
        chaos.history.end(n)
