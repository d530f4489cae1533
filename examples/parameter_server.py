"""A parameter server: workers train at their own pace against parameters that one actor holds."""

from __future__ import annotations

import argparse
import sys

import numpy as np
from numpy.typing import NDArray

from monarch.actor import Actor, current_rank, endpoint, this_host

WORKERS = 3
FEATURES = 20
Array = NDArray[np.float64]


def truth() -> Array:
    """The parameters that the training has to find."""
    return np.random.default_rng(0).normal(size=FEATURES)


class ParameterServer(Actor):
    """Holds the parameters. An actor handles one message after another, so updates need no lock."""

    def __init__(self, rate: float) -> None:
        self.parameters = np.zeros(FEATURES)
        self.rate = rate
        self.version = 0

    # Endpoints may be `async def`; then all of an actor are. Its event loop is free for other things while they wait.
    @endpoint
    async def push(self, gradient: Array) -> Array:
        """Takes a gradient and answers with the present parameters."""
        self.parameters -= self.rate * gradient
        self.version += 1
        return self.parameters

    @endpoint
    async def read(self) -> tuple[int, Array]:
        return self.version, self.parameters


class Worker(Actor):
    """Learns from its own samples."""

    def __init__(self, server: ParameterServer) -> None:
        self.server = server
        self.random = np.random.default_rng(1 + current_rank().rank)
        self.samples = self.random.normal(size=(400, FEATURES))
        self.targets = self.samples @ truth()

    @endpoint
    async def train(self, steps: int) -> float:
        """Mean squared error of the last batch."""
        error = np.zeros(1)
        _, parameters = await self.server.read.call_one()
        for _ in range(steps):
            batch = self.random.integers(0, len(self.samples), 40)
            error = self.samples[batch] @ parameters - self.targets[batch]
            parameters = await self.server.push.call_one(self.samples[batch].T @ error / len(batch))
        return float((error**2).mean())


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="fewer steps")
    steps = 150 if parser.parse_args().quick else 600

    server = this_host().spawn_procs().spawn("server", ParameterServer, 0.05)
    workers = this_host().spawn_procs(per_host={"workers": WORKERS}).spawn("workers", Worker, server)

    for point, error in workers.train.call(steps).get().items():
        print(f"worker {point}: error {error:.1e} after {steps} steps")
    updates, parameters = server.read.call_one().get()
    distance = float(np.abs(parameters - truth()).max())
    print(f"{updates} updates; the largest error of a parameter is {distance:.1e}")
    return 0 if updates == WORKERS * steps and distance < 1e-3 else 1


if __name__ == "__main__":
    sys.exit(main())
