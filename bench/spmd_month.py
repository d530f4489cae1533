"""A simulated month of training on 16,384 GPUs: the part of it that is spent on steps that count.

    python bench/spmd_month.py [--hours 7.9] [--start 60] [--process 1] [--machine 5] [--seeds 20]

Failures come at random (a Poisson process), one every `--hours` on average; `--machines` of them include a host. After each, the
policy of monarch-spmd decides, and the run pauses: `--process` or `--machine` seconds until new programs run, as
`bench/spmd_recovery.py` measures them, and `--start` seconds of the program's own start. Lost are the steps since the newest snapshot
that is complete in all ranks, chosen by the rules of monarch-spmd, or since the newest checkpoint on disk, written every `--checkpoint`
minutes. Median of the seeds.
"""

from __future__ import annotations

import argparse
import random
import statistics

from monarch.spmd.policy import RestartPolicy, Restarts
from monarch.spmd.snapshot_choice import Held, Key, choose

MONTH_S = 30 * 24 * 3600.0
# Hosts whose states are followed individually; all other hosts end like these.
FOLLOWED = 4


class Month:
    """One run; `snapshot` is the time of a copy to the next host in steps, None: checkpoints on disk only."""

    def __init__(self, options: argparse.Namespace, seed: int, snapshots: bool) -> None:
        self.options = options
        self.random = random.Random(seed)
        self.snapshots = snapshots
        self.restarts = Restarts(RestartPolicy(max_restarts=1_000_000, backoff=(0.0, 0.0)))

    def useful(self) -> float:
        """The part of the month that is spent on steps which are not done again."""
        options, step_s = self.options, self.options.step
        now = step = 0.0
        while now < MONTH_S:
            failure = now + self.random.expovariate(1 / (options.hours * 3600))
            steps = max(0.0, (min(failure, MONTH_S) - now) // step_s)
            reached = step + steps
            now = failure
            if now >= MONTH_S:
                step = reached
                break
            is_machine = self.random.random() < options.machines
            decision = self.restarts.after("host_lost" if is_machine else "signal", healthy=2047 if is_machine else 2048, can_heal=True)
            assert decision.action == ("heal" if is_machine else "restart")
            now += decision.delay + options.start + (options.machine if is_machine else options.process)
            step = self._restored(step, reached, is_machine)
        return step * step_s / MONTH_S

    def _restored(self, begin: float, reached: float, is_machine: bool) -> float:
        """The step that the next attempt begins with."""
        if not self.snapshots:
            every = self.options.checkpoint * 60 // self.options.step
            return max(begin, reached // every * every)
        # The copies of the last step are not complete, and each host has its own state.
        last = int(reached)
        lost = self.random.randrange(FOLLOWED) if is_machine else None
        held: dict[int, list[Held]] = {}
        for host in range(FOLLOWED):
            if host != lost:
                own = [Held(Key(0, step), host, FOLLOWED, 1, False) for step in (last - 1, last)]
                copies = [Held(Key(0, last - 1), (host - 1) % FOLLOWED, FOLLOWED, 1, False)]
                held[host] = own + copies
        chosen = choose(held, FOLLOWED, before=1)
        assert chosen is not None
        return max(begin, chosen.key.step)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=7.9)
    parser.add_argument("--machines", type=float, default=0.6)
    parser.add_argument("--start", type=float, default=60.0)
    parser.add_argument("--process", type=float, default=1.0)
    parser.add_argument("--machine", type=float, default=5.0)
    parser.add_argument("--step", type=float, default=5.0)
    parser.add_argument("--checkpoint", type=float, default=30.0)
    parser.add_argument("--seeds", type=int, default=20)
    options = parser.parse_args()
    for name, snapshots in (("snapshots of each step", True), (f"checkpoints every {options.checkpoint:g} min", False)):
        found = [Month(options, seed, snapshots).useful() for seed in range(options.seeds)]
        print(f"{name:28} {100 * statistics.median(found):.2f} % ({100 * min(found):.2f} to {100 * max(found):.2f})")


if __name__ == "__main__":
    main()
