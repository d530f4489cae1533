"""Models that bench/tensor.py trains, and the functions that combine the gradients of their ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as functional

LAYERS, WIDTH, HEADS, LENGTH, BATCH = 2, 128, 4, 64, 8

Step = Callable[[], Any]


def perceptron(width: int, batch: int, device: str) -> Step:
    """A step of 4 layers with SGD."""
    layers: list[Any] = []
    for _ in range(4):
        layers += [torch.nn.Linear(width, width, device=device), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    x, y = torch.randn(batch, width, device=device), torch.randn(batch, width, device=device)

    def step() -> Any:
        loss = functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


class Block(torch.nn.Module):
    """One layer of a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        self.qkv, self.out = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.up, self.down = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        batch, length, width = x.shape
        q, k, v = (t.view(batch, length, HEADS, width // HEADS).transpose(1, 2) for t in self.qkv(self.first(x)).chunk(3, -1))
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, width)
        x = x + self.out(seen)
        return x + self.down(functional.gelu(self.up(self.second(x))))


class Transformer(torch.nn.Module):
    """A model from tokens to the next tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(256, WIDTH)
        self.blocks = torch.nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.head = torch.nn.Linear(WIDTH, 256)

    def forward(self, tokens: Any) -> Any:
        return self.head(self.blocks(self.embedding(tokens)))


def transformer_step(device: str, wrap: Callable[[Any], Any] = lambda m: m, reduced: Callable[[list[Any]], None] | None = None) -> Step:
    """A step with SGD; `reduced` combines the gradients of ranks."""
    model = wrap(Transformer().to(device))
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=1e-2)
    tokens, target = torch.randint(256, (BATCH, LENGTH), device=device), torch.randint(256, (BATCH, LENGTH), device=device)

    def step() -> Any:
        loss = functional.cross_entropy(model(tokens).flatten(0, 1), target.flatten())
        loss.backward()
        if reduced is not None:
            reduced([p.grad for p in parameters])
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def each_reduced(grads: list[Any]) -> None:
    """A reduction for each gradient."""
    for grad in grads:
        grad.reduce_("gpus", "avg")


def all_reduced(grads: list[Any]) -> None:
    """One reduction for all, like DDP's buckets."""
    flat = torch.cat([g.flatten() for g in grads]).reduce_("gpus", "avg")
    for grad, part in zip(grads, flat.split([g.numel() for g in grads]), strict=True):
        grad.copy_(part.view(grad.shape))
