"""The controller: which replica groups train together, and the reconfiguration when one of them dies.

Monarch reports the death of a process to the actor that owns it, `__supervise__`. The controller passes this on to the ranks of the other
groups at once: an operation with the dead group ends, whatever the state of its connections. The remaining groups connect anew and repeat
the step. The dead group starts again meanwhile. It joins before a later step, with the state of a group that has been there. A group whose
host is lost has no place to start again: the others train on without it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import NamedTuple, TypeVar

from trainer import Trainer

from monarch.actor import (
    Actor,
    ActorError,
    Future,
    HostMesh,
    MeshFailure,
    ProcMesh,
    SupervisionError,
    concurrent_endpoint,
    per_rank,
    this_host,
)
from monarch.actor.recovery import Replicas

T = TypeVar("T")
TOGETHER = 10
MAX_ERRORS = 20  # a death causes one to three


async def all_of(answers: Iterable[Future[T]]) -> list[T]:
    """Every answer, or the first error once all have answered: no call is left in progress."""
    found = await asyncio.gather(*(answer.as_asyncio() for answer in answers), return_exceptions=True)
    for one in found:
        if isinstance(one, BaseException):
            raise one
    return [one for one in found if not isinstance(one, BaseException)]


class Step(NamedTuple):
    """A step that all groups of a quorum have done; when, by `time.monotonic`."""

    number: int
    loss: float
    groups: tuple[int, ...]
    done: float


class Group:
    """A replica group, which starts anew on its host when it has lost a process. `is_gone`: it has lost its host."""

    def __init__(self, number: int, host: HostMesh, ranks: int, is_alone: bool) -> None:
        def start(_: int, procs: ProcMesh) -> Trainer:
            return procs.spawn("trainers", Trainer, number, is_alone)

        self.replica = Replicas(1, start, hosts=host, per_host={"gpus": ranks}, name=f"group_{number}")
        self.is_gone = False

    def handle(self, failure: MeshFailure) -> bool:
        """Starts the group anew; False for a failure of another one."""
        if self.is_gone:
            return False
        is_own = self.replica.handle(failure)
        self.is_gone = is_own and failure.reason.kind == "host_lost"
        return is_own

    def heal(self) -> None:
        """Starts the group anew if it has failed."""
        if not self.is_gone:
            self.is_gone = any(failure.reason.kind == "host_lost" for failure in self.replica.heal().values())

    @property
    def trainers(self) -> Trainer:
        return self.replica[0]


class Controller(Actor):
    """`hosts`: group 0 is on the first of these, group 1 on the second, and so on, in turns; this machine by default."""

    def __init__(self, groups: int, ranks: int, hosts: HostMesh | None = None) -> None:
        of_group = [this_host() if hosts is None else hosts.slice(hosts=group % len(hosts)) for group in range(groups)]
        self.groups = [Group(group, of_group[group].with_preload(["torch"]), ranks, hosts is None) for group in range(groups)]
        # The handle of each group whose ranks have started, and the groups that are connected.
        self.started: dict[int, Trainer] = {}
        self.starting: dict[int, asyncio.Task[None]] = {}
        self.quorum: tuple[int, ...] = ()
        self.quorums = 0
        self.step = 0
        self.changed = asyncio.Condition()
        self.steps: list[Step] = []
        self.is_over = False
        self.errors: list[Exception] = []

    def __supervise__(self, failure: MeshFailure) -> bool:
        handled = any(group.handle(failure) for group in self.groups)
        self.forget()
        # Failures of what was to start on a lost host need no answer.
        return handled or any(group.is_gone for group in self.groups)

    def forget(self) -> None:
        """Notices which groups were replaced, and interrupts the others."""
        lost = [group for group, handle in self.started.items() if self.groups[group].trainers is not handle]
        for group in lost:
            del self.started[group]
        if lost:
            self.quorum = ()
            for handle in self.started.values():
                handle.cut.broadcast()

    def start_missing(self) -> None:
        """Begins to start the groups that are not there. The others train on."""
        for group in range(len(self.groups)):
            if group not in self.started and group not in self.starting and not self.groups[group].is_gone:
                self.starting[group] = asyncio.create_task(self.start(group))

    async def start(self, group: int) -> None:
        trainers = self.groups[group].trainers
        try:
            await trainers.start.call(await trainers.slice(gpus=0).serve.call_one(0))
            self.started[group] = trainers
        except (SupervisionError, ActorError) as error:
            self.errors.append(error)
            self.groups[group].heal()  # it died at once: the next attempt
        finally:
            del self.starting[group]

    async def connect(self) -> None:
        """Connects all groups that are there, and brings those up to date that have just started."""
        members: tuple[int, ...] = ()
        while members != tuple(sorted(self.started)):  # a death before `connect` is called interrupts nothing
            members = tuple(sorted(self.started))
            handles = [self.started[group] for group in members]
            self.quorums += 1
            places = await handles[0].serve.call(self.quorums)
        await all_of(
            handle.connect.call(self.quorums, number, len(members), per_rank(places.values())) for number, handle in enumerate(handles)
        )
        steps = [(await handle.slice(gpus=0).at.call_one()) for handle in handles]
        whole = handles[steps.index(max(steps))]
        await all_of(handle.catch_up.call(whole) for handle, step in zip(handles, steps, strict=True) if step < max(steps))
        self.quorum, self.step = members, max(steps)
        print(f"quorum {self.quorums} at step {self.step}: groups {', '.join(map(str, members))}", flush=True)

    @concurrent_endpoint
    async def train(self, steps: int) -> list[str]:
        """At least so many steps; ends when all groups have trained together for ten. The parameters of each group, as digests."""
        try:
            await self.run(steps)
        finally:
            async with self.changed:
                self.is_over = True
                self.changed.notify_all()
        return [found.values()[0] for found in await all_of(self.started[group].digest.call() for group in self.quorum)]

    async def run(self, steps: int) -> None:
        self.start_missing()
        await asyncio.wait(self.starting.values())
        together = 0
        while self.step < steps or together < TOGETHER:
            if len(self.errors) > MAX_ERRORS:
                raise self.errors[-1]
            self.start_missing()
            try:
                if not self.started:
                    raise RuntimeError("all groups were lost at once, and with them what they had learned")
                if self.quorum != tuple(sorted(self.started)):
                    await self.connect()
                handles = [self.started[group] for group in self.quorum]
                losses = await all_of(handle.average.call() for handle in handles)
                await all_of(handle.apply.call() for handle in handles)
            except (SupervisionError, ActorError, KeyError) as error:
                self.errors.append(error)
                for group in self.groups:
                    group.heal()
                self.forget()
                self.quorum = ()
                continue
            self.step += 1
            together = together + 1 if len(self.quorum) == sum(not group.is_gone for group in self.groups) else 0
            loss = sum(found.values()[0] for found in losses) / len(losses)
            async with self.changed:
                self.steps.append(Step(self.step, loss, self.quorum, time.monotonic()))
                self.changed.notify_all()

    @concurrent_endpoint
    async def reached(self, step: int) -> list[Step]:
        """Waits for a step, or for the end; returns all steps so far."""
        async with self.changed:
            await self.changed.wait_for(lambda: self.is_over or self.step >= step)
        return self.steps

    @concurrent_endpoint
    async def kill(self, group: int, rank: int, with_host: bool) -> None:
        self.groups[group].trainers.slice(gpus=rank).die.broadcast(with_host)
