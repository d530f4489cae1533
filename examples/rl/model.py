"""The task and the policy: a small decoder-only transformer that writes the digits of a prompt in ascending order.

The model is that of one process. `trainer.py` shards it by `fully_shard`, `generator.py` by `TENSOR_PARALLEL`: each rank of a generator has
a part of the heads and of the feed-forward units.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
from torch.distributed.tensor.parallel.style import ParallelStyle
from torch.nn import functional

DIGITS = 8
LENGTH = 3  # digits of a prompt, and of its answer
SEPARATOR = DIGITS  # the token between both
WIDTH = 32
HEADS = 4
LAYERS = 1


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before_attention = nn.LayerNorm(WIDTH)
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.joined = nn.Linear(WIDTH, WIDTH)
        self.before_units = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        normal = self.before_attention(x)
        # Under tensor parallelism these are the heads of this rank.
        heads = [layer(normal).unflatten(2, (-1, WIDTH // HEADS)).transpose(1, 2) for layer in (self.query, self.key, self.value)]
        seen = functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.joined(seen.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.before_units(x))))


class Policy(nn.Module):
    """Logits of the next token at each position."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(DIGITS + 1, WIDTH)
        self.positions = nn.Embedding(2 * LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, DIGITS)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


# For `parallelize_module` of a block.
TENSOR_PARALLEL: dict[str, ParallelStyle] = {
    "query": ColwiseParallel(),
    "key": ColwiseParallel(),
    "value": ColwiseParallel(),
    "joined": RowwiseParallel(),
    "up": ColwiseParallel(),
    "down": RowwiseParallel(),
}


def log_probabilities(policy: nn.Module, prompts: Tensor, answers: Tensor) -> Tensor:
    """The logarithm of the probability of each digit of the answers."""
    separators = torch.full_like(prompts[:, :1], SEPARATOR)
    logits = policy(torch.cat([prompts, separators, answers[:, :-1]], dim=1))[:, LENGTH:]
    return logits.log_softmax(-1).gather(2, answers.unsqueeze(2)).squeeze(2)
