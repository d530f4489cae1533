"""The controller: it owns all actors, keeps trainers and generators at work, and replaces a group that has lost a process.

No group waits for another one: each has a task here. A call to a group that has lost a process fails, and the whole group is replaced.
Trainers continue from their last checkpoint and publish again. Generators keep their weights, and attach to the new trainers.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any, NamedTuple

from generator import Generator
from replay import Replay
from reward import Verifier
from trainer import Trainer

from monarch.actor import Actor, ActorError, MeshFailure, SupervisionError, concurrent_endpoint, this_host
from monarch.actor.recovery import Replicas

MAX_LOSSES = 6
PRELOADED = ["torch", "torch.distributed.checkpoint.state_dict", "torch.distributed.fsdp", "torch.distributed.tensor.parallel"]


class Point(NamedTuple):
    """A point of the curve: an update, with the mean reward and the largest age of its episodes."""

    seconds: float
    version: int
    reward: float
    staleness: int


class Loss(NamedTuple):
    """A group that was replaced, and the first line of the error that reported it."""

    seconds: float
    group: str
    error: str


class Controller(Actor):
    def __init__(self, trainers: int, groups: int, ranks: int, checkpoints: Path) -> None:
        replay = this_host().spawn_procs(name="replay").spawn("replay", Replay)
        verifiers = this_host().spawn_procs({"procs": 2}, name="verifiers").spawn("verifiers", Verifier, replay)
        hosts = this_host().with_preload(PRELOADED)
        self.replay = replay
        self.trainers = Replicas(
            1,
            lambda _, procs: procs.spawn("trainers", Trainer, replay, checkpoints),
            hosts=hosts,
            per_host={"gpus": trainers},
            name="trainers",
        )
        self.generators = Replicas(
            groups,
            lambda number, procs: procs.spawn("generators", Generator, verifiers, number + 1),
            hosts=hosts,
            per_host={"gpus": ranks},
            name="generators",
        )
        self.published: Trainer | None = None  # their weights can be pulled
        self.changed = asyncio.Condition()
        self.is_over = False
        self.begin = time.monotonic()
        self.curve: list[Point] = []
        self.losses: list[Loss] = []

    def __supervise__(self, failure: MeshFailure) -> bool:
        return self.trainers.handle(failure) or self.generators.handle(failure)

    @concurrent_endpoint
    async def run(self, updates: int) -> None:
        """Trains up to this version."""
        generating = [asyncio.create_task(self.generate(number)) for number in range(len(self.generators))]
        try:
            await asyncio.gather(self.train(updates), *generating)
        finally:
            await self.end()

    @concurrent_endpoint
    async def reached(self, version: int) -> tuple[list[Point], list[Loss]]:
        """Waits until the trainers have this version, or until the end; returns the curve so far, and the losses."""
        async with self.changed:
            await self.changed.wait_for(lambda: self.is_over or (self.curve and self.curve[-1].version >= version))
        return self.curve, self.losses

    async def train(self, updates: int) -> None:
        while not self.is_over:
            trainers = self.trainers[0]
            try:
                if self.published is not trainers:
                    await trainers.start.call(await trainers.slice(gpus=0).listen.call_one())
                    async with self.changed:
                        self.published = trainers
                        self.changed.notify_all()
                done = (await trainers.train.call()).values()
            except (SupervisionError, ActorError) as error:
                self.replace("trainers", self.trainers, 0, trainers, error)
                continue
            async with self.changed:
                reward = sum(update.reward for update in done) / len(done)
                self.curve.append(Point(time.monotonic() - self.begin, done[0].version, reward, max(update.staleness for update in done)))
                self.changed.notify_all()
            if done[0].version >= updates:
                await self.end()

    async def generate(self, number: int) -> None:
        ready: Generator | None = None
        attached: Trainer | None = None
        while not self.is_over:
            generators, published = self.generators[number], self.published
            if ready not in (None, generators):  # replaced at the report of a death between two calls
                self.losses.append(Loss(time.monotonic() - self.begin, f"generators {number}", "a process has ended"))
            try:
                if ready is not generators:
                    await generators.start.call(await generators.slice(gpus=0).listen.call_one())
                    ready, attached = generators, None
                if published is not None and attached is not published and all((await generators.attach.call(published)).values()):
                    attached = published
                if attached is not None:
                    await generators.generate.call()
                    continue
            except (SupervisionError, ActorError) as error:
                self.replace(f"generators {number}", self.generators, number, generators, error)
                ready = None
                continue
            await self.other_weights(published)

    async def other_weights(self, known: Trainer | None) -> None:
        """Waits until other trainers publish than these, or until the end."""
        async with self.changed:
            await self.changed.wait_for(lambda: self.is_over or self.published is not known)

    def replace(self, name: str, groups: Replicas[Any], number: int, lost: object, error: Exception) -> None:
        """Starts a group anew, with new processes, unless that has been done at the report of its failure."""
        if len(self.losses) >= MAX_LOSSES:
            raise error
        if groups[number] is lost:
            groups.heal()
        if groups[number] is lost:  # another rank of the group reported first that its connection was closed
            groups.restart(number)
        self.losses.append(Loss(time.monotonic() - self.begin, name, str(error).partition("\n")[0]))

    async def end(self) -> None:
        self.is_over = True
        await self.replay.close.call_one()
        async with self.changed:
            self.changed.notify_all()
