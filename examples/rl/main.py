"""Asynchronous reinforcement learning that survives the loss of a generator and of a trainer.

    python main.py [--trainers 2] [--groups 2] [--ranks 2] [--updates 120] [--picture FILE]

A small transformer learns to sort digits by GRPO: it is never shown an answer, only rewarded for the digits at the right place.

    generators (2 groups, tensor parallel) -- episodes --> verifiers -- rewards --> replay buffer -- batches --> trainers (FSDP)
        ^                                                                                                           |
        +------------ weights, from FSDP shards to tensor-parallel ones, by monarch.rdma.weights -------------------+

Generators write with the weights that they have, while the trainers compute the next ones. This script sends SIGKILL to a process of a
generator and later to a trainer. `controller.py` replaces them, and the others go on meanwhile.

Prints the reward, and what telemetry has recorded of staleness and phases. Exits with 1 if the reward did not rise, if episodes were too
old, or if a loss was not noticed. Needs monarch-rdma, monarch-telemetry and torch; the picture needs matplotlib.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

from controller import Controller, Loss, Point
from replay import MAX_STALENESS

import monarch.telemetry as telemetry
from monarch.actor import this_proc

# Milliseconds of each phase: spans of all processes, also of those that have ended.
PHASES = """
    SELECT name, count(*) AS spans, avg(took) AS mean_ms, max(took) AS longest_ms FROM (
        SELECT s.name, (max(e.timestamp_us) - min(e.timestamp_us)) / 1000.0 AS took
        FROM spans s JOIN span_events e ON e.process_id = s.process_id AND e.id = s.id
        WHERE s.name LIKE 'rl.%' GROUP BY s.name, s.process_id, s.id)
    GROUP BY name ORDER BY name"""
# The mean age of the episodes that the trainers have learnt from.
STALENESS = """
    SELECT count, coalesce(value_f64, value_i64, value_u64) / count AS mean FROM metric_totals WHERE name = 'rl.staleness'"""


def kill(mesh: str, rank: int) -> None:
    """Sends SIGKILL to the present process of a rank."""
    [row] = telemetry.query(f"SELECT pid FROM live_procs() WHERE mesh_name = '{mesh}' AND rank = {rank}", timeout=60).to_pylist()
    print(f"SIGKILL to rank {rank} of {mesh}", flush=True)
    os.kill(row["pid"], signal.SIGKILL)


def draw(curve: list[Point], losses: list[Loss], file: str) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    upper, lower = figure.subplots(2, sharex=True, height_ratios=[3, 1])
    upper.plot([point.seconds for point in curve], [point.reward for point in curve], linewidth=1)
    upper.set(ylabel="reward", ylim=(0, 1), title="Sorting digits by GRPO: a generator and a trainer are killed")
    for loss in losses:
        upper.axvline(loss.seconds, color="tab:red", linestyle="--", linewidth=1)
        upper.annotate(f" {loss.group} lost", (loss.seconds, 0.04), color="tab:red")
    lower.step([point.seconds for point in curve], [point.staleness for point in curve], linewidth=1, color="tab:gray")
    lower.set(ylabel="staleness", xlabel="seconds")
    figure.savefig(file)


def report() -> None:
    for row in telemetry.query(PHASES).to_pylist():
        print(f"{row['name']:12} {row['spans']:5} spans, mean {row['mean_ms']:7.1f} ms, longest {row['longest_ms']:8.1f} ms")
    for row in telemetry.query(STALENESS).to_pylist():
        print(f"staleness: {row['mean']:.2f} versions, mean of {row['count']} batches")


def main() -> int:
    parser = argparse.ArgumentParser(description="Learn to sort digits with asynchronous generators, and lose two processes.")
    parser.add_argument("--trainers", type=int, default=2, help="ranks of FSDP (default: %(default)s)")
    parser.add_argument("--groups", type=int, default=2, help="groups of generators (default: %(default)s)")
    parser.add_argument("--ranks", type=int, default=2, help="of each group, tensor parallel (default: %(default)s)")
    parser.add_argument("--updates", type=int, default=120)
    parser.add_argument("--picture", metavar="FILE", help="draws the curve of the reward")
    options = parser.parse_args()
    # Processes inherit the environment. Each is one of several on this machine, so each uses one thread.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

    start = time.monotonic()
    running = telemetry.start()
    with tempfile.TemporaryDirectory() as folder:
        controller = this_proc().spawn("controller", Controller, options.trainers, options.groups, options.ranks, Path(folder))
        training = controller.run.call_one(options.updates)
        rounds = 10
        for number in range(1, rounds + 1):
            version = options.updates * number // rounds
            curve, losses = controller.reached.call_one(version).get()
            if not curve or curve[-1].version < version:
                break  # the run has failed: its error is below
            last = [point.reward for point in curve[-max(1, options.updates // rounds) :]]
            print(f"{time.monotonic() - start:5.1f} s, version {version:3}: reward {sum(last) / len(last):.2f}", flush=True)
            if number == 3:
                kill(f"generators_{options.groups - 1}", options.ranks - 1)
            if number == 6:
                kill("trainers_0", options.trainers - 1)
        training.get()
        for loss in losses:
            print(f"{loss.group} replaced: {loss.error}")
        report()
    running.stop().get()

    if options.picture:
        draw(curve, losses, options.picture)
    few = max(1, options.updates // rounds)
    first, last = (sum(point.reward for point in part) / len(part) for part in (curve[:few], curve[-few:]))
    print(f"reward went from {first:.2f} to {last:.2f} in {time.monotonic() - start:.0f} s, {len(losses)} groups were replaced")
    replaced = {loss.group.split()[0] for loss in losses}
    good = last > first + 0.4 and replaced == {"trainers", "generators"} and all(point.staleness <= MAX_STALENESS for point in curve)
    print("passed" if good else "FAILED")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
