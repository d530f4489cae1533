"""Random number generators of a rank: those of the CPU and, if there are any, of its devices."""

from __future__ import annotations

import torch

_CUDA = torch.cuda


def signed(seed: int) -> int:
    """A seed as a signed integer of 64 bits, which a tensor holds."""
    return (seed + (1 << 63)) % (1 << 64) - (1 << 63)


def set_manual_seed(seed: int, process_idx: torch.Tensor | None = None) -> None:
    """Seeds all generators, with the sum of both if there is an index."""
    torch.manual_seed(signed(seed + (0 if process_idx is None else int(process_idx))))


def seed() -> None:
    """Seeds the generators with numbers that are different on each rank and in each run."""
    torch.seed()


def initial_seed() -> torch.Tensor:
    return torch.tensor(signed(torch.initial_seed()))


def get_rng_state() -> torch.Tensor:
    return torch.get_rng_state()


def set_rng_state(state: torch.Tensor) -> None:
    torch.set_rng_state(state)


def manual_seed_cuda(seed: int) -> None:
    _CUDA.manual_seed(signed(seed))


def manual_seed_all_cuda(seed: int) -> None:
    _CUDA.manual_seed_all(signed(seed))


def seed_cuda() -> None:
    _CUDA.seed()


def seed_all_cuda() -> None:
    _CUDA.seed_all()


def initial_seed_cuda() -> torch.Tensor:
    return torch.tensor(signed(_CUDA.initial_seed()))


def get_rng_state_cuda() -> torch.Tensor:
    return _CUDA.get_rng_state()


def set_rng_state_cuda(state: torch.Tensor) -> None:
    _CUDA.set_rng_state(state)


def get_rng_state_all_cuda() -> list[torch.Tensor]:
    return _CUDA.get_rng_state_all()


def set_rng_state_all_cuda(states: list[torch.Tensor]) -> None:
    _CUDA.set_rng_state_all(states)


class Generators:
    """The states of the generators of a rank."""

    __slots__ = ("cpu", "cuda")

    def __init__(self, cpu: torch.Tensor, cuda: torch.Tensor | None) -> None:
        self.cpu = cpu
        self.cuda = cuda


def states() -> Generators:
    return Generators(torch.get_rng_state(), _CUDA.get_rng_state() if _CUDA.is_available() else None)


def restore(found: Generators) -> None:
    torch.set_rng_state(found.cpu)
    if found.cuda is not None:
        _CUDA.set_rng_state(found.cuda)


def seeded(seed: int, process_idx: torch.Tensor | None = None) -> Generators:
    """The states after `set_manual_seed`; those in force stay as they are."""
    before = states()
    set_manual_seed(seed, process_idx)
    made = states()
    restore(before)
    return made
