"""Remote functions for every program: logs and random number generators of the workers."""

from __future__ import annotations

import torch

from monarch.tensor._functions.remote_function import remote
from monarch.tensor._worker import logs, rng

# The length in this process equals that of a worker, which has the same release of torch.
_LENGTH: int = torch.get_rng_state().numel()


def _state() -> torch.Tensor:
    return torch.empty(_LENGTH, dtype=torch.uint8)


def _cuda_state() -> torch.Tensor:
    # A seed and an offset.
    return torch.empty(16, dtype=torch.uint8)


def _number() -> torch.Tensor:
    return torch.empty((), dtype=torch.int64)


# `log_remote(message, *arguments, level=logging.WARNING)` logs a line on each rank, by the logger `monarch.tensor.remote`.
log_remote = remote(logs.log)
# `set_logging_level_remote(level)`: lines below it are left out.
set_logging_level_remote = remote(logs.set_level)

# `set_manual_seed_remote(seed, process_idx=None)` seeds all generators, with the sum if there is a tensor of an index.
set_manual_seed_remote = remote(rng.set_manual_seed)
# The state of the generator of the CPU, as a tensor of bytes, and back.
get_rng_state_remote = remote(rng.get_rng_state, propagate=_state)
set_rng_state_remote = remote(rng.set_rng_state)
# A random seed, separate for each rank; and the seed of the generator, as a signed integer.
seed_remote = remote(rng.seed)
random_seed_remote = seed_remote
initial_seed_remote = remote(rng.initial_seed, propagate=_number)

# The same functions for the generators of GPUs: that of the rank's device, or all of them.
manual_seed_cuda_remote = remote(rng.manual_seed_cuda)
manual_seed_all_cuda_remote = remote(rng.manual_seed_all_cuda)
seed_cuda_remote = remote(rng.seed_cuda)
seed_all_cuda_remote = remote(rng.seed_all_cuda)
initial_seed_cuda_remote = remote(rng.initial_seed_cuda, propagate=_number)
get_rng_state_cuda_remote = remote(rng.get_rng_state_cuda, propagate=_cuda_state)
set_rng_state_cuda_remote = remote(rng.set_rng_state_cuda)
# The states of all GPUs of the rank, as a list; rank 0 gives their number.
get_rng_state_all_cuda_remote = remote(rng.get_rng_state_all_cuda, propagate="inspect")
set_rng_state_all_cuda_remote = remote(rng.set_rng_state_all_cuda)
