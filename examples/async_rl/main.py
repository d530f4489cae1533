"""Asynchronous reinforcement learning: generators write episodes while a trainer learns from earlier ones.

    python main.py [--generators N] [--updates N]

The task is to copy a sequence of letters. A policy writes a letter for each position at once, and the reward is the correct part.
REINFORCE learns it from rewards alone.

Four kinds of actors, each in a process of its own:

    generators ── episodes ──> scorer ── with rewards ──> replay buffer ── batches ──> trainer
        ^                                                                                │
        └──────────── weights, by one-sided reads of the trainer's memory ───────────────┘

No actor waits for the slowest: generators continue with their present weights while the trainer computes the next ones. Each update makes
a new version of the weights, each episode has the version that wrote it, and the trainer learns from no episode that is more than
MAX_STALENESS versions old.

Prints the reward on the way. Exits with 1 if it did not go up, or if an episode was too old. Needs monarch-rdma and torch.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections import deque
from typing import NamedTuple

import torch
from torch import Tensor, nn

from monarch.actor import Actor, concurrent_endpoint, current_rank, endpoint, this_host
from monarch.rdma import RDMABuffer, RDMABufferSet, allocate

LETTERS = 6
LENGTH = 4
EPISODES = 64  # of one message
BATCH = 128  # of one update
MAX_STALENESS = 4
CAPACITY = 6  # messages that wait for the trainer; more of them would only get old


class Policy(nn.Module):
    """Logits of each letter at each position, given the sequence to copy."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(LENGTH * LETTERS, 64), nn.Tanh(), nn.Linear(64, LENGTH * LETTERS))

    def forward(self, prompts: Tensor) -> Tensor:
        read = nn.functional.one_hot(prompts, LETTERS).float().flatten(1)
        return self.layers(read).view(-1, LENGTH, LETTERS)


class Episodes(NamedTuple):
    """Several episodes of one version: prompts and the policy's letters, with the logarithm of their probability; rewards once they are
    scored.
    """

    version: int
    prompts: Tensor
    written: Tensor
    log_probability: Tensor
    rewards: Tensor | None = None


class Published(NamedTuple):
    """The handles with which generators fetch weights: of two slots, and of the version, whose parity is the current slot."""

    slots: tuple[RDMABufferSet, RDMABufferSet]
    version: RDMABuffer


class ReplayBuffer(Actor):
    """Episodes that wait for the trainer, oldest first; drops episodes that have become too old."""

    def __init__(self) -> None:
        self.waiting: deque[Episodes] = deque()
        self.changed = asyncio.Condition()
        self.version = 0
        self.dropped = 0
        self.is_over = False

    @concurrent_endpoint
    async def put(self, episodes: Episodes) -> bool:
        """Waits while the buffer is full. False when no more episodes are needed."""
        async with self.changed:
            await self.changed.wait_for(lambda: self.is_over or len(self.waiting) < CAPACITY)
            self.waiting.append(episodes)
            self.changed.notify_all()
            return not self.is_over

    @concurrent_endpoint
    async def take(self, version: int) -> list[Episodes]:
        """A batch for the trainer that has this version of the weights; waits for one."""
        count = BATCH // EPISODES
        async with self.changed:
            self.version = version
            await self.changed.wait_for(lambda: self._fresh() >= count)
            taken = [self.waiting.popleft() for _ in range(count)]
            self.changed.notify_all()
            return taken

    def _fresh(self) -> int:
        before = len(self.waiting)
        self.waiting = deque(episodes for episodes in self.waiting if self.version - episodes.version <= MAX_STALENESS)
        if len(self.waiting) < before:
            self.dropped += (before - len(self.waiting)) * EPISODES
            self.changed.notify_all()
        return len(self.waiting)

    @concurrent_endpoint
    async def close(self) -> int:
        """The number of episodes that were too old."""
        async with self.changed:
            self.is_over = True
            self.changed.notify_all()
        return self.dropped


class Scorer(Actor):
    """Computes the reward: the correct part of the letters. In real work this is a verifier, or another model."""

    def __init__(self, replay: ReplayBuffer) -> None:
        self.replay = replay

    @concurrent_endpoint
    async def score(self, episodes: Episodes) -> bool:
        """Passes the episodes on, with rewards. False when no more are needed."""
        rewards = (episodes.prompts == episodes.written).float().mean(1)
        return await self.replay.put.call_one(episodes._replace(rewards=rewards))


class Generator(Actor):
    def __init__(self, scorer: Scorer, published: Published) -> None:
        self.scorer = scorer
        self.published = published
        torch.manual_seed(1 + current_rank().rank)
        self.policy = Policy()
        self.version = torch.zeros(1, dtype=torch.int64)
        # Weights arrive in their place: in the parameters of the module.
        parameters = {name: parameter.data for name, parameter in self.policy.named_parameters()}
        self.plans = [slot.plan_read(parameters) for slot in published.slots]

    async def fetch(self) -> int:
        """Fetches the current weights; returns their version. The trainer may write the other slot meanwhile."""
        while True:
            await self.published.version.read_into(self.version)
            version = int(self.version)
            await self.plans[version % 2].submit()
            await self.published.version.read_into(self.version)
            # The trainer begins to write this slot again when the version is already one higher. Then the weights may be mixed.
            if int(self.version) == version:
                return version

    @endpoint
    async def run(self) -> tuple[int, int]:
        """Writes episodes until no more are needed; returns their number, and the number of versions of the weights."""
        count, versions = 0, set[int]()
        is_needed = True
        while is_needed:
            version = await self.fetch()
            versions.add(version)
            prompts = torch.randint(LETTERS, (EPISODES, LENGTH))
            with torch.no_grad():
                policy = torch.distributions.Categorical(logits=self.policy(prompts))
                written = policy.sample()
                log_probability = policy.log_prob(written).sum(1)
            is_needed = await self.scorer.score.call_one(Episodes(version, prompts, written, log_probability))
            count += EPISODES
        return count, len(versions)


class Update(NamedTuple):
    """One update: the mean reward of its episodes, and the age of the oldest one in versions."""

    reward: float
    staleness: int


class Trainer(Actor):
    def __init__(self, replay: ReplayBuffer) -> None:
        self.replay = replay
        torch.manual_seed(0)
        self.policy = Policy()
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=1e-2)
        # Shared memory, from which other processes of this host copy without the kernel.
        self.slots = [
            {name: torch.frombuffer(allocate(p.nbytes), dtype=p.dtype).view(p.shape) for name, p in self.policy.named_parameters()}
            for _ in range(2)
        ]
        self.version = torch.frombuffer(allocate(8), dtype=torch.int64)
        self.write(0)

    def write(self, version: int) -> None:
        """Makes the weights current. Generators that read the other slot are not disturbed."""
        for name, parameter in self.policy.named_parameters():
            self.slots[version % 2][name].copy_(parameter.detach())
        self.version.fill_(version)

    @endpoint
    async def publish(self) -> Published:
        even, odd = (RDMABufferSet(slot, readonly=True) for slot in self.slots)
        return Published((even, odd), RDMABuffer(self.version, readonly=True))

    @endpoint
    async def train(self, updates: int) -> list[Update]:
        return [await self.update() for _ in range(updates)]

    async def update(self) -> Update:
        version = int(self.version)
        batch = await self.replay.take.call_one(version)
        rewards = torch.cat([episodes.rewards for episodes in batch if episodes.rewards is not None])
        policy = torch.distributions.Categorical(logits=self.policy(torch.cat([episodes.prompts for episodes in batch])))
        log_probability = policy.log_prob(torch.cat([episodes.written for episodes in batch])).sum(1)
        # Episodes of older weights count by their likelihood under the present ones. The ratio is cut, so that no single one dominates.
        ratio = (log_probability.detach() - torch.cat([episodes.log_probability for episodes in batch])).exp().clamp(max=2.0)
        loss = -(ratio * (rewards - rewards.mean()) * log_probability).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.write(version + 1)
        return Update(rewards.mean().item(), max(version - episodes.version for episodes in batch))


def main() -> int:
    parser = argparse.ArgumentParser(description="Learn to copy sequences with asynchronous generators.")
    parser.add_argument("--generators", type=int, default=2)
    parser.add_argument("--updates", type=int, default=120)
    options = parser.parse_args()
    # Processes inherit the environment. Each is one of several on this machine, so each uses one thread.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

    replay = this_host().spawn_procs(name="replay").spawn("replay", ReplayBuffer)
    scorer = this_host().spawn_procs(name="scorer").spawn("scorer", Scorer, replay)
    trainer = this_host().spawn_procs(name="trainer").spawn("trainer", Trainer, replay)
    published = trainer.publish.call_one().get()
    procs = this_host().spawn_procs(per_host={"generators": options.generators}, name="generators")
    generators = procs.spawn("generators", Generator, scorer, published)

    generating = generators.run.call()
    done: list[Update] = []
    rounds = 10
    for number in range(rounds):
        found = trainer.train.call_one(options.updates * (number + 1) // rounds - len(done)).get()
        done += found
        reward, staleness = sum(update.reward for update in found) / len(found), max(update.staleness for update in found)
        print(f"version {len(done):3}: reward {reward:.2f}, episodes at most {staleness} versions old", flush=True)
    dropped = replay.close.call_one().get()
    for rank, (count, versions) in enumerate(generating.get().values()):
        print(f"generator {rank} wrote {count:,} episodes with {versions} versions of the weights")
    print(f"{dropped:,} episodes were too old to learn from")

    few = max(1, options.updates // rounds)
    first, last = (sum(update.reward for update in part) / len(part) for part in (done[:few], done[-few:]))
    good = last > first + 0.3 and max(update.staleness for update in done) <= MAX_STALENESS
    print(f"reward went from {first:.2f} to {last:.2f}")
    print("passed" if good else "FAILED")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
