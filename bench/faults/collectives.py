"""Programs whose ranks do not call the same collectives. They need PyTorch, whose backend gloo runs without a GPU."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from bench.faults.program import Fault, go_on, ready, rest, until_closed
from monarch.actor import Actor, Future, current_rank, endpoint, this_host

_MODULE = "torch"
_RANKS = 8


class Learner(Actor):
    """A rank of data-parallel training: each step ends with the sum of the gradients over all ranks."""

    @endpoint
    def join(self, store: str, ranks: int) -> None:
        import torch.distributed

        torch.set_num_threads(1)
        torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=current_rank().rank, world_size=ranks)

    @endpoint
    def train(self, steps: int) -> None:
        for _ in range(steps):
            self._sum(1024)

    @endpoint
    def sum_of_labelled(self, unlabelled: int) -> None:
        """A rank without labels returns before the sum."""
        if current_rank().rank == unlabelled:
            return
        self._sum(1024)

    @endpoint
    def share(self, hasty: int) -> None:
        """The first rank shares its weights after the sum; one rank expects them before it."""
        if current_rank().rank == hasty:
            self._from_first()
            self._sum(1024)
        else:
            self._sum(1024)
            self._from_first()

    @endpoint
    def sum_of_layers(self, frozen: int) -> None:
        """A rank has frozen layers, and so fewer gradients."""
        self._sum(8 if current_rank().rank == frozen else 1 << 20)

    @endpoint
    def train_from(self, first: int, resumed: int, steps: int) -> None:
        """A rank has resumed from a later step."""
        for _ in range(first if current_rank().rank == resumed else 0, steps):
            self._sum(1024)

    @endpoint
    def train_with(self, slow: int, seconds: float) -> None:
        """Each step of one rank takes far longer than those of the others; without one, all take as long."""
        while True:
            if slow in (-1, current_rank().rank):
                time.sleep(seconds)  # sleeps: the work of a step
            self._sum(1024)

    def _sum(self, elements: int) -> None:
        import torch

        torch.distributed.all_reduce(torch.ones(elements))

    def _from_first(self) -> None:
        import torch

        torch.distributed.broadcast(torch.ones(1024), 0)


def _learners(ranks: int) -> Learner:
    procs = this_host().spawn_procs({"gpus": ranks}, name="workers", preload=["torch", "torch.distributed"])
    learners = procs.spawn("learner", Learner)
    learners.join.call(str(Path(tempfile.mkdtemp(prefix="faults-")) / "store"), ranks).get()
    learners.train.call(3).get()
    return learners


def _program(call: Callable[[Any], Future[Any]], ranks: int = _RANKS) -> None:
    rest(call(_learners(ranks)))


def shape() -> None:
    go_on()
    _learners(_RANKS).sum_of_layers.call(6).exception()
    rest()


def _steps(ranks: int, seconds: float) -> None:
    """Healthy: all ranks work for as long before each sum."""
    learners = _learners(ranks)
    until_closed()
    ready()
    learners.train_with.call(-1, seconds).get()


def _fault(name: str, call: Callable[[Any], Future[Any]], cause: str, after: float = 1.0) -> Fault:
    return Fault(name, partial(_program, call), cause, after, module=_MODULE)


FAULTS = (
    _fault(
        "collective_of_7_of_8",
        lambda learners: learners.sum_of_labelled.call(5),
        r"learner rank 5 of 8 .*has not called all_reduce in collectives\.py:\d+ in _sum, for which \d ranks wait",
    ),
    _fault(
        "collective_order",
        lambda learners: learners.share.call(3),
        r"learner rank 3 of 8 .*calls broadcast in collectives\.py:\d+ in _from_first where \d ranks call all_reduce",
    ),
    # The backend gloo ends the process that receives more than its tensor has room for.
    Fault("collective_shape", shape, r"learner rank 6 of 8 .*was killed by signal 6 \(SIGABRT\)", 1.0, module=_MODULE),
    _fault(
        "rank_in_another_step",
        lambda learners: learners.train_from.call(2, 4, 5),
        r"learner rank 4 of 8 .*has not called all_reduce .*for which \d ranks wait: it has begun 6 collectives .*they 7",
    ),
    _fault("slow_rank", lambda learners: learners.train_with.call(2, 1.0), r"learner rank 2 of 8 .*is slower than the other ranks", 2.0),
)
HEALTHY = tuple(
    Fault(f"learners_{ranks}x{int(1e3 * seconds)}ms", partial(_steps, ranks, seconds), "", 1.0, module=_MODULE)
    for ranks, seconds in ((4, 0.0), (4, 0.05), (2, 0.5))
)
