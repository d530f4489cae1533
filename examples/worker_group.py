"""A worker group: a batch in unequal parts to a 2 x 4 mesh, the results in order, and a straggler that the batch goes on without."""

from __future__ import annotations

import threading
from typing import Any

from monarch.actor import Actor, DeadlineExceeded, PartialValues, ValueMesh, current_rank, deadline, endpoint, per_rank, this_host

HOSTS, GPUS = 2, 4
PROMPTS = [f"prompt {number}" for number in range(37)]
# Seconds that one step of the group may take.
LIMIT = 2.0


class Generator(Actor):
    """Answers prompts."""

    def __init__(self) -> None:
        self.gone = threading.Event()

    @endpoint
    def generate(self, prompts: list[str], straggler: int | None) -> list[str]:
        if current_rank().rank == straggler:
            self.gone.wait(1.2 * LIMIT)
        return [f"answer to {prompt}" for prompt in prompts]


def parts(batch: list[str], count: int) -> list[list[str]]:
    """The batch in consecutive parts whose lengths differ by one at most."""
    short, longer = divmod(len(batch), count)
    ends = [short * rank + min(rank, longer) for rank in range(count + 1)]
    return [batch[begin:end] for begin, end in zip(ends, ends[1:], strict=False)]


def step(workers: Any, batch: list[str], straggler: int | None = None) -> tuple[list[str], list[str]]:
    """The answers of one step in the order of the batch, and the prompts of the ranks that have missed the deadline."""
    shares = parts(batch, workers.size())
    try:
        with deadline(LIMIT):
            answers: ValueMesh[list[str]] | PartialValues[list[str]] = workers.generate.call(per_rank(shares), straggler).get()
        missing: list[int] = []
    except DeadlineExceeded as e:
        print(e)
        answers, missing = e.values, e.missing
    return [answer for part in answers.values() for answer in part], [prompt for rank in missing for prompt in shares[rank]]


def main() -> None:
    with this_host().spawn_procs({"hosts": HOSTS, "gpus": GPUS}) as procs:
        workers = procs.spawn("workers", Generator)
        answers, left = step(workers, PROMPTS)
        assert answers == [f"answer to {prompt}" for prompt in PROMPTS] and not left
        print(f"step 1: {len(answers)} answers of {workers.size()} ranks, parts of {[len(p) for p in parts(PROMPTS, workers.size())]}")

        answers, left = step(workers, PROMPTS, straggler=5)
        print(f"step 2: {len(answers)} answers, {len(left)} prompts are left: {left[0]} to {left[-1]}")
        assert len(answers) + len(left) == len(PROMPTS)

        # The batch goes on without the row of the straggler, which is still busy.
        row = workers.slice(hosts=0)
        again, left = step(row, left)
        assert not left
        print(f"step 2: {len(again)} more answers of {row.size()} ranks; all {len(answers) + len(again)} are there")


if __name__ == "__main__":
    main()
