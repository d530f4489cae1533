"""Recomputations of `torch.utils.checkpoint`, which are to draw the random numbers of the first pass.

Torch keeps the state of the generators of its own process for that, and the random numbers of a mesh are drawn on the workers.
"""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from monarch.tensor.errors import TensorMeshError

if TYPE_CHECKING:
    from collections.abc import Generator

_thread = threading.local()
_MODULE = "torch.utils.checkpoint"


@contextmanager
def drawing_again() -> Generator[None]:
    """Inside, the generators of the workers have the states of the first pass."""
    before = getattr(_thread, "draws_again", False)
    _thread.draws_again = True
    try:
        yield
    finally:
        _thread.draws_again = before


def refuse_other_numbers(func: Any) -> None:
    """`TensorMeshError` for an operator that would draw other numbers than in the first pass."""
    module = sys.modules.get(_MODULE)
    if module is None or getattr(_thread, "draws_again", False):
        return
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        code = frame.f_code
        if code.co_filename == module.__file__ and _keeps_state(code.co_qualname, frame.f_locals):
            raise TensorMeshError(
                f"{func}: this recomputation of torch.utils.checkpoint would draw other random numbers than its first pass: torch keeps "
                "the state of the controller's generator only. Give `checkpoint` the arguments `use_reentrant=False` and "
                "`context_fn=monarch.tensor.random.checkpoint_contexts`, or `preserve_rng_state=False` where the numbers may differ."
            )
        frame = frame.f_back


def _keeps_state(name: str, values: dict[str, Any]) -> bool:
    """Whether a frame of torch recomputes, and the program wants the same numbers."""
    if name == "CheckpointFunction.backward":
        return getattr(values.get("ctx"), "preserve_rng_state", True)
    return name.endswith("recompute_fn") and values.get("preserve_rng_state", True)
