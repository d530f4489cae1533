"""Healthy jobs of different loads, in which nothing is wrong."""

from __future__ import annotations

import threading
from functools import partial

from bench.faults import healthy_calls, healthy_failures, healthy_loads, healthy_wheels
from bench.faults.actors import AsyncPartner, Trainer
from bench.faults.program import Fault, forever, rest
from monarch.actor import Actor, endpoint, this_host


class Relay(Actor):
    """Passes a call on to the next actor of a chain."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    @endpoint
    async def after(self, other: object) -> None:
        self.other = other

    @endpoint
    async def ask(self, seconds: float) -> int:
        if self.other is None:
            return 1
        return 1 + await self.other.ask.call_one(seconds)  # pyright: ignore


def idle() -> None:
    this_host().spawn_procs({"gpus": 4}, name="workers").spawn("trainer", Trainer).pid.call().get()
    rest()


def steps(seconds: float, ranks: int) -> None:
    """Lock-step training: all ranks work for as long."""
    trainers = this_host().spawn_procs({"gpus": ranks}, name="workers").spawn("trainer", Trainer)
    forever(lambda: trainers.step.call(seconds).get())


def ping_pong() -> None:
    """Two actors that call each other in turns, at full speed."""
    procs = this_host().spawn_procs({"procs": 2}, name="procs")
    left, right = procs.slice(procs=0).spawn("left", Relay), procs.slice(procs=1).spawn("right", Relay)
    left.after.call_one(right).get()
    right.after.call_one(None).get()
    forever(lambda: left.ask.call_one(0.0).get())


def chain() -> None:
    """A chain of four actors, each of which awaits the next one."""
    procs = this_host().spawn_procs({"procs": 4}, name="procs")
    links = [procs.slice(procs=index).spawn(f"link{index}", Relay) for index in range(4)]
    for index, link in enumerate(links):
        link.after.call_one(links[index + 1] if index < 3 else None).get()
    forever(lambda: links[0].ask.call_one(0.0).get())


def bursts() -> None:
    """Bursts of small messages, each of which is drained."""
    partner = this_host().spawn_procs(name="procs").spawn("partner", AsyncPartner)

    def burst() -> None:
        for _ in range(5000):
            partner.answer.broadcast()
        partner.answer.call_one().get()

    forever(burst)


def retries() -> None:
    """Errors of endpoints that the caller handles."""
    trainers = this_host().spawn_procs({"gpus": 2}, name="workers").spawn("trainer", Trainer)
    forever(lambda: (trainers.check.call(1).exception(), trainers.step.call(0.01).get()))


def churn() -> None:
    """Meshes that come and go."""

    def once() -> None:
        with this_host().spawn_procs({"gpus": 2}, name="short") as procs:
            procs.spawn("trainer", Trainer).pid.call().get()

    forever(once)


def one_long_step() -> None:
    """All ranks work on one long step, for which the client waits."""
    trainers = this_host().spawn_procs({"gpus": 2}, name="workers").spawn("trainer", Trainer)
    rest(trainers.step.call(60.0))


_STEPS = tuple(Fault(f"steps_{ranks}x{int(1e3 * s)}ms", partial(steps, s, ranks), "", 1.0) for ranks in (1, 2, 8) for s in (0.0, 0.01, 0.5))
HEALTHY = (
    Fault("idle", idle, ""),
    *_STEPS,
    Fault("ping_pong", ping_pong, ""),
    Fault("chain", chain, ""),
    Fault("bursts", bursts, ""),
    Fault("retries", retries, ""),
    Fault("churn", churn, ""),
    Fault("one_long_step", one_long_step, "", 6.0),
    *healthy_calls.HEALTHY,
    *healthy_loads.HEALTHY,
    *healthy_failures.HEALTHY,
    *healthy_wheels.HEALTHY,
)
