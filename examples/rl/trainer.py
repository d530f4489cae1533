"""Trainers: the ranks of one FSDP group learn by GRPO, publish each version of the weights, and save checkpoints.

The advantage of an answer is its reward relative to the other answers to the same prompt. Episodes may be of older weights: the ratio of
the probabilities now and then weighs them, and is clipped.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed.checkpoint as dcp
from member import Member
from model import Policy, log_probabilities
from replay import Replay
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

from monarch.actor import endpoint, get_meter, span
from monarch.rdma.weights import Weights

SAVE_EVERY = 10
CLIP = 0.2


class Update(NamedTuple):
    """An update on one rank: the version that it has made, and reward and age of its episodes."""

    version: int
    reward: float
    staleness: int


class Trainer(Member):
    def __init__(self, replay: Replay, checkpoints: Path) -> None:
        super().__init__()
        self.replay = replay
        self.checkpoints = checkpoints
        self.reward = get_meter("rl").create_gauge("rl.reward")

    @endpoint
    def start(self, port: int) -> int:
        """Continues from the last checkpoint, and publishes its weights. Returns their version."""
        mesh = self.join(port)
        torch.manual_seed(0)
        self.policy = Policy()
        for block in self.policy.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(self.policy, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.policy.parameters(), lr=5e-3, weight_decay=0.0)
        # The metadata of a checkpoint is written last.
        version = max((int(path.parent.name) for path in self.checkpoints.glob("*/.metadata")), default=0)
        if version:
            weights, moments = get_state_dict(self.policy, self.optimizer)
            dcp.load({"weights": weights, "moments": moments}, checkpoint_id=self.checkpoints / str(version))
            set_state_dict(self.policy, self.optimizer, model_state_dict=weights, optim_state_dict=moments)
        self.source = Weights.publish("policy", self.policy.state_dict())
        if version:
            with self.source.update(version):
                pass  # the version of the checkpoint is its step
        return version

    @endpoint
    def train(self) -> Update:
        """One update of all ranks, each with episodes of its own."""
        with span("rl.wait"):
            episodes, age = self.replay.take.call_one(self.source.version).get()
        with span("rl.train", version=self.source.version):
            _, answers, length = episodes.answers.shape
            rewards = torch.from_numpy(episodes.rewards)
            advantages = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)
            log = log_probabilities(
                self.policy,
                torch.from_numpy(episodes.prompts).repeat_interleave(answers, 0),
                torch.from_numpy(episodes.answers).reshape(-1, length),
            )
            ratio = (log - torch.from_numpy(episodes.log_probabilities).reshape(-1, length)).exp()
            advantage = advantages.reshape(-1, 1)
            loss = -torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage).mean()
            self.optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.policy.parameters(), 1.0)
        with span("rl.publish"), self.source.update():
            self.optimizer.step()
        version = self.source.version
        if version % SAVE_EVERY == 0:
            with span("rl.save"):
                weights, moments = get_state_dict(self.policy, self.optimizer)
                dcp.save({"weights": weights, "moments": moments}, checkpoint_id=self.checkpoints / str(version))
        self.reward.set(float(rewards.mean()))
        return Update(version, float(rewards.mean()), age)
