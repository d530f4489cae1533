"""A small character-level transformer, and the text that it learns: Python's own language reference, which every interpreter has.

The examples train, lightning, accelerate and replica_groups share it. Nothing is downloaded.
"""

from __future__ import annotations

from pydoc_data.topics import topics

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

CONTEXT = 64
WIDTH = 64
HEADS = 4
LAYERS = 2

TEXT = "\n".join(topics[name] for name in sorted(topics))
VOCABULARY = sorted(set(TEXT))
_CODE = {character: code for code, character in enumerate(VOCABULARY)}
CODES = torch.tensor([_CODE[character] for character in TEXT])


def batch(size: int, seed: int) -> tuple[Tensor, Tensor]:
    """Random windows of the text, and the character that follows each position: the same for the same seed."""
    starts = torch.randint(len(CODES) - CONTEXT, (size,), generator=torch.Generator().manual_seed(seed))
    windows = torch.stack([CODES[start : start + CONTEXT + 1] for start in starts.tolist()])
    return windows[:, :-1], windows[:, 1:]


class Windows(Dataset[tuple[Tensor, Tensor]]):
    """The first `count` windows of the text, for data loaders."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        window = CODES[index * CONTEXT : (index + 1) * CONTEXT + 1]
        return window[:-1], window[1:]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before_attention = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.joined = nn.Linear(WIDTH, WIDTH)
        self.feed_forward = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        rows, length, _ = x.shape
        query, key, value = self.qkv(self.before_attention(x)).view(rows, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.joined(seen.transpose(1, 2).reshape(rows, length, WIDTH))
        return x + self.feed_forward(x)


class CharModel(nn.Module):
    """Predicts the next character at each position. `forward` returns the loss if it is given targets, else logits."""

    def __init__(self) -> None:
        super().__init__()
        self.characters = nn.Embedding(len(VOCABULARY), WIDTH)
        self.positions = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, len(VOCABULARY)))

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        x = self.characters(x) + self.positions(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(x)
        return logits if targets is None else functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
