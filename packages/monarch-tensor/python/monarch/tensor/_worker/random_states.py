"""States of generators that stay on a rank: what `monarch.tensor.random` runs there."""

from __future__ import annotations

import torch

from monarch.tensor._protocol.opaque_ref import OpaqueRef
from monarch.tensor._worker import rng


def get() -> OpaqueRef:
    return OpaqueRef(rng.states())


def set(state: OpaqueRef) -> None:
    rng.restore(state.value)


def new(seed: int, process_idx: torch.Tensor | None) -> OpaqueRef:
    return OpaqueRef(rng.seeded(seed, process_idx))


def make_deterministic() -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False
