"""A training with data loaders, to be looked at while it runs: in the dashboard, in SQL, by `monarch ps`.

    python examples/observed_training.py [--quick] [--seconds 60]

Two hosts of a job train on four processes each, a third host loads data. Steps are spans with a metric, and one rank is slower than the
others. One batch is bad: its step fails, and the training goes on. An evaluator fails, and its owner starts another. It prints the URL of
the dashboard.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time

import numpy as np
from numpy.typing import NDArray

from monarch.actor import Actor, ActorError, MeshFailure, ProcMesh, current_rank, endpoint, get_meter, span, this_proc
from monarch.job import ProcessJob

FEATURES, BATCH = 200, 500
BAD_BATCH, FAILED_SCORE = 33, 5
Array = NDArray[np.float64]


class Loader(Actor):
    """Makes batches."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(current_rank().rank)

    @endpoint
    def batch(self, number: int) -> Array:
        data = self.random.normal(size=(BATCH, FEATURES))
        if number == BAD_BATCH:
            data[7, 7] = np.nan
        return data


class Trainer(Actor):
    """Fits a linear model to its share of the batches."""

    def __init__(self, loaders: Loader) -> None:
        self.rank = current_rank().rank
        self.loaders = loaders
        self.weights = np.zeros(FEATURES)
        self.loss = get_meter("example").create_histogram("train.loss")

    @endpoint
    def step(self, number: int) -> float:
        with span("load", step=number):
            data = self.loaders.batch.choose(number * 8 + self.rank).get()
        with span("train", step=number):
            error = data @ self.weights - data.sum(axis=1)
            loss = float((error**2).mean())
            if np.isnan(loss):
                raise ValueError(f"the loss of step {number} is not a number: batch {number * 8 + self.rank}")
            self.weights -= 0.05 * data.T @ error / BATCH
            time.sleep(0.06 if self.rank == 5 else 0.02)
        self.loss.record(loss)
        if number % 20 == 0:
            print(f"step {number}: loss {loss:.4f}")
        return loss


class Evaluator(Actor):
    """Scores the weights now and then, and fails once."""

    @endpoint
    def score(self, number: int) -> None:
        if number == FAILED_SCORE:
            raise FileNotFoundError(f"no checkpoint of step {number}")


class Supervisor(Actor):
    """Owns the evaluator: its failure ends nothing else."""

    def __init__(self, procs: ProcMesh) -> None:
        self.procs = procs
        self.evaluator = procs.spawn("evaluator", Evaluator)

    def __supervise__(self, failure: MeshFailure) -> bool:
        self.evaluator = self.procs.spawn("evaluator", Evaluator)
        return True

    @endpoint
    def score(self, number: int) -> None:
        self.evaluator.score.broadcast(number)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="six steps")
    parser.add_argument("--seconds", type=float, default=20.0)
    arguments = parser.parse_args()
    job = ProcessJob({"trainers": 2, "loaders": 1})
    job.enable_telemetry(include_dashboard=True)
    state = job.state(cached_path=None)
    print(f"dashboard: {state.dashboard_url}", flush=True)
    try:
        loaders = state.loaders.spawn_procs({"procs": 2}, name="loaders").spawn("loader", Loader)
        supervisor = this_proc().spawn("supervisor", Supervisor, state.loaders.spawn_procs(name="evaluation"))
        procs = state.trainers.spawn_procs({"gpus": 4}, name="trainers")
        asyncio.run(procs.logging_option(stream_to_client=True))
        trainers = procs.spawn("trainer", Trainer, loaders)
        end, number, failed, losses = time.monotonic() + arguments.seconds, 0, 0, [0.0]
        while number < 6 if arguments.quick else time.monotonic() < end:
            try:
                losses = trainers.step.call(number).get().values()
            except ActorError as error:
                failed += 1
                print(str(error).splitlines()[0], flush=True)
            supervisor.score.broadcast(number)
            number += 1
        print(f"{number} steps, {failed} failed, last loss {max(losses):.4f}")
    finally:
        job.kill()
    return 0


if __name__ == "__main__":
    sys.exit(main())
