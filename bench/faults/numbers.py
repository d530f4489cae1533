"""Programs whose values become no numbers."""

from __future__ import annotations

import math

import monarch.telemetry as telemetry
from bench.faults.program import Fault, forever
from monarch.actor import Actor, current_rank, endpoint, get_meter, this_host


class Trainer(Actor):
    """Records its loss; the mean of all losses is in the loss of the next step."""

    def __init__(self) -> None:
        meter = get_meter("training")
        self.step_gauge, self.loss_gauge = meter.create_gauge("step"), meter.create_gauge("loss")

    @endpoint
    def step(self, number: int, mean: float) -> float:
        # From step 20 on a batch of rank 2 has a logarithm of a number that is not positive.
        loss = math.nan if number >= 20 and current_rank().rank == 2 else 0.5 * mean + 1 / (1 + number)
        self.step_gauge.record(number)
        self.loss_gauge.record(loss)
        return loss


def nan_of_one_rank() -> None:
    """The loss of one rank becomes NaN, and that of all ranks one step later."""
    telemetry.start(serve=True)
    trainers = this_host().spawn_procs({"gpus": 4}, name="workers").spawn("trainer", Trainer)
    state = {"number": 0, "mean": 1.0}

    def steps() -> None:
        # Readiness is reported after the first round.
        for _ in range(40):
            losses = [loss for _, loss in trainers.step.call(int(state["number"]), state["mean"]).get().items()]
            state["number"], state["mean"] = state["number"] + 1, sum(losses) / len(losses)

    forever(steps)


FAULTS = (
    Fault(
        "nan_of_one_rank", nan_of_one_rank, r"the metric loss of trainer rank 2 .*is NaN since .* at step 20: .*3 other ranks followed", 3.0
    ),
)
