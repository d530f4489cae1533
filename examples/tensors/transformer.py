"""Data- and tensor-parallel training of a small transformer by one program: two copies of the model, each cut into two parts.

    python transformer.py [--steps N]

Torch code runs unchanged, and each call runs on four processes. Only the layers whose weights are cut are parallel: two functions with a
backward of their own add up the numbers of the parts. The same model is trained in this process as well, and the losses are equal.

Needs monarch-tensor and torch.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from monarch import tensor as monarch
from monarch.actor import this_host

VOCABULARY, LENGTH, WIDTH, HEADS, LAYERS, BATCH = 12, 16, 32, 4, 2, 8
COPIES, PARTS = 2, 2  # of the batch, and of each model


@monarch.grad_function
def begin_parts(x: Any) -> Any:
    """All parts have the same input. Its gradient is the sum of theirs."""
    return x, lambda gradient: gradient.reduce("tp", "sum")


@monarch.grad_function
def end_parts(x: Any) -> Any:
    """The result is the sum of those of the parts, and each part has its gradient."""
    return x.reduce("tp", "sum"), lambda gradient: gradient


def same(x: Any) -> Any:
    return x


class Block(nn.Module):
    """Attention and two layers behind it. Each part has some of the heads, and some of the hidden numbers."""

    def __init__(self, parts: int) -> None:
        super().__init__()
        self.begin: Callable[[Any], Any] = begin_parts if parts > 1 else same
        self.end: Callable[[Any], Any] = end_parts if parts > 1 else same
        self.heads = HEADS // parts
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        # Cut by rows: each part has some of the results.
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH // parts, bias=False) for _ in range(3))
        self.up = nn.Linear(WIDTH, 4 * WIDTH // parts, bias=False)
        # Cut by columns: each part has some of the operands, and the results are added up.
        self.out = nn.Linear(WIDTH // parts, WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH // parts, WIDTH, bias=False)

    def forward(self, x: Any) -> Any:
        h = self.begin(self.norm1(x))
        query, key, value = (layer(h).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value))
        scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
        later = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
        attended = scores.masked_fill(later, float("-inf")).softmax(-1) @ value
        x = x + self.end(self.out(attended.transpose(1, 2).flatten(2)))
        h = self.begin(self.norm2(x))
        return x + self.end(self.down(nn.functional.gelu(self.up(h))))


class Transformer(nn.Module):
    def __init__(self, parts: int = 1) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Block(parts) for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Any) -> Any:
        return self.head(self.norm(self.blocks(self.tokens(tokens) + self.places.weight)))


def loss_of(model: nn.Module, text: Any) -> Any:
    """The mean loss of guessing each token but the first from those before it."""
    return nn.functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())


def texts(step: int) -> torch.Tensor:
    """Sequences that count up in steps of 1 to 3, from any number."""
    generator = torch.Generator().manual_seed(step)
    first = torch.randint(VOCABULARY, (BATCH, 1), generator=generator)
    by = torch.randint(1, 4, (BATCH, 1), generator=generator)
    return (first + by * torch.arange(LENGTH + 1)) % VOCABULARY


def own_part(numbers: list[Any], dim: int, count: int, rank: Any) -> Any:
    """The part of each rank, of numbers that this process has."""
    return torch.stack(torch.tensor(numbers).chunk(count, dim)).index_select(0, rank.view(1)).squeeze(0)


def load(model: nn.Module, numbers: dict[str, list[Any]], rank: Any) -> None:
    """Gives a model that is cut into parts the numbers of the undivided one."""
    cut = {"query": 0, "key": 0, "value": 0, "up": 0, "out": 1, "down": 1}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            layer = name.split(".")[-2]
            parameter.copy_(own_part(numbers[name], cut[layer], PARTS, rank) if layer in cut else torch.tensor(numbers[name]))


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small transformer on four processes, as two copies of two parts.")
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()

    torch.set_num_threads(1)  # of this process: its model is small
    torch.manual_seed(0)
    local = Transformer()
    local_optimizer = torch.optim.AdamW(local.parameters(), lr=5e-3)
    numbers = {name: parameter.tolist() for name, parameter in local.named_parameters()}
    batches = [texts(step) for step in range(options.steps)]

    # Four processes along one dimension, as two dimensions. Hosts with several GPUs have two: there it is
    # `mesh.rename(hosts="dp", gpus="tp")`.
    procs = this_host().spawn_procs({"gpus": COPIES * PARTS})
    with procs.activate() as flat:
        mesh = flat.split(gpus=("dp", "tp"), tp=PARTS)

    losses: list[Any] = []
    with mesh.activate():
        model = Transformer(PARTS)
        load(model, numbers, mesh.rank("tp"))
        optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
        # The order in which backward reaches them.
        parameters = list(model.parameters())[::-1]
        for batch in batches:
            loss = loss_of(model, own_part(batch.tolist(), 0, COPIES, mesh.rank("dp")))
            # Each gradient is averaged over the copies while those of the layers before are computed.
            for parameter, gradient in zip(parameters, monarch.grad_generator(loss, parameters), strict=True):
                parameter.grad = gradient.reduce("dp", "avg")
            optimizer.step()
            # The loss is fetched, without waiting for it.
            losses.append(monarch.fetch_shard(loss.detach().reduce("dp", "avg")))

    largest = 0.0
    for step, (batch, fetched) in enumerate(zip(batches, losses, strict=True)):
        loss = loss_of(local, batch)
        local_optimizer.zero_grad()
        loss.backward()
        local_optimizer.step()
        found = fetched.get().item()
        largest = max(largest, abs(found - loss.item()))
        if step % 10 == 0 or step == options.steps - 1:
            print(f"step {step:2}: loss {found:.4f} on {COPIES} x {PARTS} processes, {loss.item():.4f} on one")
    assert largest < 1e-4, f"the losses differ by {largest}"
    print(f"both models learn the same, to within {largest:.0e}")


if __name__ == "__main__":
    main()
