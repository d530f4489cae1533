"""Episodes, and the buffer in which they wait for the trainers."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from monarch.actor import Actor, concurrent_endpoint, get_meter

CAPACITY = 4  # more of them would get old
MAX_STALENESS = 6


class Episodes(NamedTuple):
    """Several answers to each of some prompts, of one version of the weights."""

    version: int
    prompts: NDArray[np.int64]  # of shape (prompts, digits)
    answers: NDArray[np.int64]  # (prompts, answers to each, digits)
    log_probabilities: NDArray[np.float32]  # of each digit, at that version
    rewards: NDArray[np.float32]  # (prompts, answers to each)


class Replay(Actor):
    """Keeps episodes in their order. Writers wait while it is full, and trainers while it is empty."""

    def __init__(self) -> None:
        self.waiting = deque[Episodes]()
        self.changed = asyncio.Condition()
        self.is_closed = False
        meter = get_meter("rl")
        self.staleness = meter.create_histogram("rl.staleness", "versions")
        self.dropped = meter.create_counter("rl.dropped")

    @concurrent_endpoint
    async def put(self, episodes: Episodes) -> None:
        async with self.changed:
            await self.changed.wait_for(lambda: self.is_closed or len(self.waiting) < CAPACITY)
            self.waiting.append(episodes)
            self.changed.notify_all()

    @concurrent_endpoint
    async def take(self, version: int) -> tuple[Episodes, int]:
        """The oldest episodes that are at most `MAX_STALENESS` versions behind this one, and their age in versions."""
        async with self.changed:
            while True:
                await self.changed.wait_for(lambda: self.waiting)
                episodes = self.waiting.popleft()
                self.changed.notify_all()
                # Trainers that went back to a checkpoint may have a lower version than the episodes.
                age = max(0, version - episodes.version)
                if age <= MAX_STALENESS:
                    self.staleness.record(age)
                    return episodes, age
                self.dropped.add(1)

    @concurrent_endpoint
    async def close(self) -> None:
        """No writer waits any more."""
        async with self.changed:
            self.is_closed = True
            self.changed.notify_all()
