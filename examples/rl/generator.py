"""Generators: the ranks of a tensor-parallel group write answers with the weights that they have, while newer ones arrive.

All ranks of a group draw the same numbers, and their logits are equal, so they write the same tokens without a message. Weights arrive in a
second copy of this rank's part. Between two batches the ranks agree whether all have the same version there, and then take it.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.distributed as dist
from member import Member
from model import DIGITS, LENGTH, SEPARATOR, TENSOR_PARALLEL, Policy
from replay import Episodes
from reward import Verifier
from torch.distributed.tensor.parallel import parallelize_module
from trainer import Trainer

from monarch.actor import Future, endpoint, span
from monarch.rdma import RDMAError
from monarch.rdma.weights import Target, Weights

PROMPTS = 8  # of a batch
ANSWERS = 8  # to each


class Generator(Member):
    def __init__(self, verifiers: Verifier, seed: int) -> None:
        super().__init__()
        self.verifiers = verifiers
        self.random = torch.Generator().manual_seed(seed)
        self.target: Target | None = None
        self.pull: Future[int] | None = None
        self.version = -1

    @endpoint
    def start(self, port: int) -> None:
        mesh = self.join(port)
        self.policy = Policy()
        for block in self.policy.blocks:
            parallelize_module(block, mesh, TENSOR_PARALLEL)
        self.weights = self.policy.state_dict()
        self.arriving = {name: torch.empty_like(tensor) for name, tensor in self.weights.items()}

    @endpoint
    def attach(self, trainers: Trainer) -> bool:
        """From now on weights come from these trainers; False if they have died meanwhile."""
        try:
            self.target = Weights.attach("policy", of=trainers, into=self.arriving, buffers=1)
        except RDMAError:
            return False
        self.pull = self.target.pull()
        return True

    def refresh(self) -> None:
        """Takes the weights that have arrived, if all ranks have the same version, and begins the next pull. Waits for no weights."""
        arrived = -1
        if self.pull is not None:
            try:
                arrived = self.pull.get(timeout=0)
            except RDMAError:
                self.pull = None  # the trainers have died: the present weights are used until `attach`
            except TimeoutError:
                pass  # on the way
        versions = torch.tensor([arrived, -arrived])
        dist.all_reduce(versions, dist.ReduceOp.MAX)
        if arrived >= 0 and versions.tolist() == [arrived, -arrived] and arrived != self.version:
            for name, tensor in self.weights.items():
                tensor.copy_(self.arriving[name])
            self.version = arrived
        if arrived >= 0 and self.target is not None:
            self.pull = self.target.pull()

    @endpoint
    def generate(self) -> None:
        """Writes one batch. Rank 0 sends it, and waits until the buffer has taken it."""
        with span("rl.refresh"):
            self.refresh()
        if self.version < 0:
            return  # the first weights are on the way
        with span("rl.generate", version=self.version), torch.no_grad():
            prompts = torch.randint(DIGITS, (PROMPTS, LENGTH), generator=self.random)
            tokens = torch.nn.functional.pad(prompts.repeat_interleave(ANSWERS, 0), (0, 1), value=SEPARATOR)
            logs: list[torch.Tensor] = []
            for _ in range(LENGTH):
                log = self.policy(tokens)[:, -1].log_softmax(-1)
                chosen = torch.multinomial(log.exp(), 1, generator=self.random)
                logs.append(log.gather(1, chosen))
                tokens = torch.cat([tokens, chosen], dim=1)
        if self.rank == 0:
            shape = (PROMPTS, ANSWERS, LENGTH)
            answers, log = tokens[:, -LENGTH:].reshape(shape).numpy(), torch.cat(logs, dim=1).view(shape).numpy()
            episodes = Episodes(self.version, prompts.numpy(), answers, log, np.zeros(shape[:2], np.float32))
            with span("rl.send"):
                self.verifiers.verify.choose(episodes).get()
