"""Training with failures: the workers of digits.py are killed while they train, and training continues with the same result.

    python elastic_training.py [--quick] [--faults N] [--seed N]

A trainer owns the workers. When one dies, it is replaced by a new process, the new worker copies parameters, momentum and step from the
memory of a living neighbour, and the interrupted step is repeated. The main script is the enemy: it sends SIGKILL to workers,
chosen at random, at random moments.

At the end the same training runs in this process alone, without faults. Exits with 1 if the parameters differ, if the accuracy is below
95 %, or if a fault went unnoticed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import sys
import time
from collections.abc import Iterable
from typing import NamedTuple, TypeVar

import numpy as np
from digits import HELD_OUT, STEPS, WORKERS, Array, Gradient, Images, Model, average, batches, load, train_alone

from monarch.actor import Actor, ActorError, Future, MeshFailure, ProcMesh, SupervisionError, endpoint, this_proc
from monarch.actor.recovery import Replicas

T = TypeVar("T")


class State(NamedTuple):
    """The state with which a worker that starts late becomes equal to the others."""

    step: int
    layers: list[Array]
    velocity: list[Array]


class Worker(Actor):
    """Holds a copy of the model, and makes the batches of its rank itself: they depend on rank and epoch only."""

    def __init__(self, rank: int, train: Images) -> None:
        self.rank = rank
        self.train = train
        self.model = Model()
        self.step = 0
        self.epoch = -1
        self.batches: list[Images] = []

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def gradient(self, step: int) -> Gradient:
        epoch = step // STEPS
        if self.epoch != epoch:
            self.epoch, self.batches = epoch, batches(self.train, self.rank, epoch)
        return self.model.gradient(self.batches[step % STEPS])

    @endpoint
    def apply(self, step: int, mean: list[Array]) -> None:
        """Does nothing on a worker that has just been started and has not caught up."""
        if step == self.step:
            self.model.apply(mean)
            self.step += 1

    @endpoint
    def state(self) -> State:
        return State(self.step, self.model.layers, self.model.velocity)

    @endpoint
    def catch_up(self, neighbour: Worker) -> int:
        """Copies the state from the neighbour's memory: nothing passes through the trainer, nothing is read from a disk."""
        self.step, self.model.layers, self.model.velocity = neighbour.state.call_one().get()
        return self.step


class Fault(NamedTuple):
    """A worker that was replaced; times as of `time.monotonic()`, which is the same in all processes of a machine."""

    rank: int
    step: int
    cause: str
    detected: float
    respawned: float
    caught_up: float


async def all_of(answers: Iterable[Future[T]]) -> list[T]:
    """Every answer, or the first error once all have answered: no call is left in progress."""
    found = await asyncio.gather(*(answer.as_asyncio() for answer in answers), return_exceptions=True)
    for one in found:
        if isinstance(one, BaseException):
            raise one
    return [one for one in found if not isinstance(one, BaseException)]


class Trainer(Actor):
    """Owns the workers, keeps them alive, and trains them."""

    def __init__(self, train: Images, faults: int) -> None:
        self.started = [0.0] * WORKERS
        self.step = 0

        def start(rank: int, procs: ProcMesh) -> Worker:
            self.started[rank] = time.monotonic()
            return procs.spawn("worker", Worker, rank, train)

        # Each worker may be lost as often as the enemy strikes; for real work the default limit is better.
        self.workers = Replicas(WORKERS, start, name="worker", max_restarts=faults)

    def __supervise__(self, failure: MeshFailure) -> bool:
        return self.workers.handle(failure)

    @endpoint
    async def train(self, steps: int) -> tuple[list[int], list[Fault]]:
        """Trains for `steps` steps in spite of faults. Returns the workers' processes at the end, and the faults."""
        faults: list[Fault] = []
        end = self.step + steps
        while True:
            try:
                faults += await self.recover()
                if self.step == end:
                    return await all_of(worker.pid.call_one() for worker in self.workers), faults
                mean, _ = average(await all_of(worker.gradient.call_one(self.step) for worker in self.workers))
                await all_of(worker.apply.call_one(self.step, mean) for worker in self.workers)
                self.step += 1
            except SupervisionError:
                continue  # a worker died: recover, and repeat the step

    async def recover(self) -> list[Fault]:
        """Brings replaced workers, if there are any, to the step of the others."""
        faults: list[Fault] = []
        behind = self.workers.heal()
        while behind:
            rank, failure = behind.popitem()
            whole = [other for other in range(WORKERS) if other != rank and other not in behind]
            if not whole:
                raise RuntimeError("all workers were lost at once, and with them what they had learned")
            try:
                worker, neighbour = self.workers[rank], self.workers[whole[0]]
                await worker.pid.call_one()
                respawned = time.monotonic()
                # If the worker was lost in the middle of a step, the others may have done that step already.
                self.step = await worker.catch_up.call_one(neighbour)
                faults.append(Fault(rank, self.step, str(failure.reason.kind), self.started[rank], respawned, time.monotonic()))
            except (SupervisionError, ActorError):  # the worker or its neighbour is gone as well
                behind |= {rank: failure, **self.workers.heal()}
        return faults

    @endpoint
    async def parameters(self) -> list[list[Array]]:
        return [state.layers for state in await all_of(worker.state.call_one() for worker in self.workers)]


def train_under_fire(train: Images, epochs: int, faults: int, seed: int) -> tuple[list[list[Array]], int, list[tuple[float, Fault]]]:
    """The parameters of every worker at the end, the number of kills, and for each its time and the trainer's fault."""
    rng = random.Random(seed)
    trainer = this_proc().spawn("trainer", Trainer, train, faults)
    kills, target = 0, -1
    struck: dict[int, float] = {}
    seen: list[tuple[float, Fault]] = []
    pids, _ = trainer.train.call_one(0).get()
    pause = 0.0
    start = time.monotonic()
    for epoch in range(epochs):
        done = trainer.train.call_one(STEPS)
        # No kill in the first epoch, which measures the time of an epoch, and none in the last, after which no call would notice.
        if 0 < epoch < epochs - 1 and kills * (epochs - 2) < faults * epoch:
            time.sleep(rng.random() * pause)
            # Another worker than last time: of that worker this script may only know the old process.
            target = rng.choice([rank for rank in range(WORKERS) if rank != target])
            kills += 1
            struck[target] = time.monotonic()
            os.kill(pids[target], signal.SIGKILL)
        pids, news = done.get()
        for fault in news:
            seen.append((struck.pop(fault.rank, fault.detected), fault))
            show(*seen[-1])
        if epoch == 0:
            pause = time.monotonic() - start
    return trainer.parameters.call_one().get(), kills, seen


def show(struck: float, fault: Fault) -> None:
    times = [1000 * (at - struck) for at in (fault.detected, fault.respawned, fault.caught_up)]
    print(
        f"worker {fault.rank} killed at step {fault.step:3}: detected after {times[0]:6.1f} ms, "
        f"replacement answers after {times[1]:6.1f} ms, caught up after {times[2]:6.1f} ms",
        flush=True,
    )


def summary(seen: list[tuple[float, Fault]]) -> None:
    print(f"{len(seen)} workers killed and replaced; milliseconds from the kill on:\n{'':24}   median  slowest")
    for name, field in (("failure detected", "detected"), ("replacement answers", "respawned"), ("state from a neighbour", "caught_up")):
        times = sorted(1000 * (getattr(fault, field) - at) for at, fault in seen)
        print(f"{name:24} {times[len(times) // 2]:8.1f} {times[-1]:8.1f}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Train a classifier of handwritten digits while its workers are being killed.")
    parser.add_argument("--quick", action="store_true", help="fewer epochs and faults")
    parser.add_argument("--faults", type=int, help="how many workers are killed (default: 20, or 6 with --quick)")
    parser.add_argument("--seed", type=int, default=1, help="of what is killed, and when (default: %(default)s)")
    options = parser.parse_args()
    epochs = 15 if options.quick else 30
    faults = min(options.faults if options.faults is not None else 6 if options.quick else 20, epochs - 2)

    # Processes inherit the environment. Each is one of several on this machine, so each uses one thread for its linear algebra.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"

    train, held_out = load()
    start = time.monotonic()
    parameters, kills, seen = train_under_fire(train, epochs, faults, options.seed)
    print(
        f"trained {epochs} epochs, {epochs * STEPS} steps on {WORKERS} workers, {time.monotonic() - start:.1f} s with start-up and faults"
    )
    if seen:
        summary(seen)

    alone = train_alone(train, epochs)
    model = Model()
    model.layers = parameters[0]
    _, right = model.score(held_out)
    identical = all(np.array_equal(a, b) for layers in parameters for a, b in zip(layers, parameters[0], strict=True))
    difference = max(float(np.abs(a - b).max()) for a, b in zip(parameters[0], alone.layers, strict=True))
    print(f"held-out accuracy:       {right / HELD_OUT:.2%} ({HELD_OUT} images)")
    print(f"parameters:              {'identical' if identical else 'DIFFERENT'} on all workers")
    print(f"difference to no faults: {difference:.1e} between a parameter here and one of an undisturbed single process")
    good = right / HELD_OUT >= 0.95 and identical and difference <= 1e-10 and len(seen) == kills == faults
    print("passed" if good else "FAILED")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
