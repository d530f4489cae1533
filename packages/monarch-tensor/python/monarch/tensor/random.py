"""Random number generators of the ranks. Without a seed, ranks draw independently."""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from monarch.tensor._controller.recomputation import drawing_again
from monarch.tensor._functions.remote_function import Remote
from monarch.tensor._protocol.opaque_ref import OpaqueRef
from monarch.tensor._tensors.mesh import get_active_mesh
from monarch.tensor._worker import random_states, rng

if TYPE_CHECKING:
    from collections.abc import Generator

    from monarch.tensor._tensors.mesh import Tensor


class State(OpaqueRef):
    """The states of the generators of each rank: of the CPU's, and of the device's if there is one. They stay on the workers."""


_seed = Remote(rng.set_manual_seed)
_get = Remote(random_states.get, lambda: OpaqueRef())
_set = Remote(random_states.set)
_new = Remote(random_states.new, lambda seed, process_idx: OpaqueRef())  # pyright: ignore[reportUnknownLambdaType]
_deterministic = Remote(random_states.make_deterministic)


def manual_seed(seed: int, *, per_rank: bool = True) -> None:
    """Seeds the generators of each rank of the active mesh, in the order of torch calls.

    `per_rank` adds the rank's place in the mesh, so that ranks draw different numbers; else all of them draw the same ones.
    """
    _seed(_checked("manual_seed", seed), _place_of_rank(per_rank))


def get_state() -> State:
    """The states of the generators of each rank at this point of the order."""
    return _state(_get())


def set_state(state: State) -> None:
    """Takes each rank's generators back to a state. The same one may be set again. `TypeError` for anything else."""
    if not isinstance(state, State):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"set_state({state!r}): expected a State of get_state or new_state, not {type(state).__name__}")
    _set(state)


def new_state(seed: int, *, per_rank: bool = True) -> State:
    """The states that `manual_seed` gives. The generators in force stay as they are."""
    return _state(_new(_checked("new_state", seed), _place_of_rank(per_rank)))


def checkpoint_contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """For recomputations that draw the numbers of the first pass, as dropout does.

    `torch.utils.checkpoint.checkpoint(fn, x, use_reentrant=False, context_fn=tensor.random.checkpoint_contexts)`
    """
    return nullcontext(), _again(get_state())


@contextmanager
def _again(state: State) -> Generator[None]:
    before = get_state()
    set_state(state)
    try:
        with drawing_again():
            yield
    finally:
        set_state(before)


def make_deterministic(seed: int = 0) -> None:
    """From here on each rank computes the same in each run of the program.

    Generators are seeded as by `manual_seed`. Operators use deterministic algorithms; those that have none run as before, and warn on the
    workers.
    """
    _deterministic()
    manual_seed(seed)


def _state(ref: OpaqueRef) -> State:
    made = State()
    made.__core__ = ref.__core__
    return made


def _place_of_rank(per_rank: bool) -> Tensor | None:
    return get_active_mesh().process_idx() if per_rank else None


def _checked(name: str, seed: Any) -> int:
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise TypeError(f"{name}({seed!r}): expected an integer, not {type(seed).__name__}")
    if not -(1 << 63) <= seed < 1 << 64:
        raise ValueError(f"{name}({seed!r}): expected a seed from -2**63 to 2**64 - 1")
    return seed
