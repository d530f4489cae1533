"""What events cost: of one, and of calls, casts and spawns while they are recorded.

    python bench/events.py [--rounds 5] [--calls 2000]

The costs of one event come from a loop in Rust (`cargo run --example cost`), in nanoseconds. The others are medians of processes that
alternate: off, the flight recorder on, and an observer attached that counts events, in microseconds. Prints one JSON line for each.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

RUST = Path(__file__).resolve().parents[1] / "packages/monarch-core/rust"
MODES = ("off", "recorder", "observer")


def one_event() -> dict[str, object]:
    argv = ["cargo", "run", "--quiet", "--release", "--locked", "-p", "monarch-events", "--example", "cost"]
    return json.loads(subprocess.run(argv, cwd=RUST, check=True, capture_output=True, text=True).stdout)


def median(times: int, one: Callable[[], object]) -> float:
    """Microseconds of one, the median."""
    for _ in range(times // 10):
        one()
    found: list[float] = []
    for _ in range(times):
        begin = time.perf_counter()
        one()
        found.append(time.perf_counter() - begin)
    return statistics.median(found) * 1e6


def work(mode: str, calls: int) -> dict[str, float]:
    """In a process of its own."""
    from monarch.actor import Actor, endpoint, this_host
    from monarch.extension import events

    class Member(Actor):
        @endpoint
        def nothing(self) -> None:
            pass

    class Waiting(Actor):
        @endpoint
        async def nothing(self) -> None:
            pass

    seen = 0

    def count(batch: events.Batch) -> None:
        nonlocal seen
        seen += len(batch.events)

    observation = events.observe(count) if mode == "observer" else None
    procs = this_host().spawn_procs(per_host={"procs": 4})
    one = procs.slice(procs=0)
    member, waiting, members = one.spawn("member", Member), one.spawn("waiting", Waiting), procs.spawn("members", Member)
    members.nothing.call().get()

    def pipelined() -> None:
        for future in [member.nothing.call_one() for _ in range(100)]:
            future.get()

    found = {
        "call_us": median(calls, lambda: member.nothing.call_one().get()),
        "async_call_us": median(calls, lambda: waiting.nothing.call_one().get()),
        "call_on_4_us": median(calls, lambda: members.nothing.call().get()),
        "pipelined_us": median(calls // 50, pipelined) / 100,
        "spawn_actor_us": median(calls // 20, lambda: one.spawn("more", Member).nothing.call_one().get()),
    }
    if observation is not None:
        observation.stop()
        found["events_seen"] = seen
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--work", choices=MODES)
    arguments = parser.parse_args()
    if arguments.work:
        print(json.dumps(work(arguments.work, arguments.calls)))
        return
    print(json.dumps({"case": "one event", **one_event()}), flush=True)
    found: dict[str, list[dict[str, float]]] = {mode: [] for mode in MODES}
    for _ in range(arguments.rounds):
        for mode in MODES:
            argv = [sys.executable, __file__, "--work", mode, "--calls", str(arguments.calls)]
            env = {**os.environ, "MONARCH_FLIGHT_RECORDER": "1" if mode == "recorder" else "0"}
            found[mode].append(json.loads(subprocess.run(argv, env=env, check=True, capture_output=True, text=True).stdout))
    for mode, rounds in found.items():
        print(json.dumps({"case": mode, **{key: round(statistics.median(r[key] for r in rounds), 2) for key in rounds[0]}}), flush=True)


if __name__ == "__main__":
    main()
