"""The cost of events: of one, of draining them, and of calls, casts and spawns while they are recorded and observed.

    python bench/events.py [--rounds 11] [--seconds 0.5] [--case call]

One event: a loop in Rust (`cargo run --example cost`), in nanoseconds. Draining: nanoseconds an event, as columns and as objects. The
rest is measured in one run whose modes alternate, so that they share processes and the machine's other load: nothing recorded, recorded,
and observed by a collector of columns in a process of its own, by one in this process, and by an observer in this process that makes
objects. A round is the average of half a second of operations; a case is the median of the rounds, in microseconds, and its ratios are
medians of the rounds' ratios. The best round of a mode is the one least disturbed by other load. Prints one JSON line a case.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from requirement import cargo, require

from monarch.actor import Actor, ProcMesh, endpoint, this_host
from monarch.extension import events

RUST = Path(__file__).resolve().parents[1] / "packages/monarch-core/rust"
# Seconds between drains: no run takes as long, so nothing is drained.
NEVER = 3600.0


class Member(Actor):
    @endpoint
    def nothing(self) -> None:
        pass

    @endpoint
    def emit(self, count: int) -> None:
        for number in range(count):
            events.emit("step", number=number)


class Waiting(Actor):
    @endpoint
    async def nothing(self) -> None:
        pass


class Counter:
    """An observer that reads all columns, or all events."""

    def __init__(self, columns: bool) -> None:
        self.columns = columns
        self.seen, self.batches, self.lost = 0, 0, 0

    def __call__(self, batch: events.Batch) -> None:
        self.seen += sum(of.rows for of in batch.columns.values()) if self.columns else len(batch.events)
        self.batches += 1


class Collector(Actor):
    """An observer in a process of its own."""

    @endpoint
    def attach(self) -> None:
        self.counter = Counter(True)
        self.observation = events.observe(self.counter)

    @endpoint
    def detach(self) -> None:
        self.observation.stop()


def one_event() -> dict[str, object]:
    argv = ["cargo", "run", "--quiet", "--release", "--locked", "-p", "monarch-events", "--example", "cost"]
    return json.loads(subprocess.run(argv, cwd=RUST, check=True, capture_output=True, text=True).stdout)


def draining(rounds: int) -> dict[str, float]:
    """Nanoseconds per event."""
    holder = events.observe(lambda batch: None, every=NEVER)
    member = this_host().spawn_procs(name="emitter").spawn("member", Member)
    member.emit.call_one(10_000).get()
    (recording,) = [one for one in events.recordings() if "emitter" in one.name]

    def drained(use: Callable[[events.Batch], object]) -> float:
        found: list[float] = []
        for _ in range(rounds):
            reader = recording.reader()
            begin = time.perf_counter()
            batch = reader.drain()
            use(batch)
            found.append((time.perf_counter() - begin) / len(batch) * 1e9)
        return statistics.median(found)

    found = {
        "drain_ns": drained(len),
        "columns_ns": drained(lambda batch: batch.columns),
        "objects_ns": drained(lambda batch: batch.events),
    }
    holder.stop()
    return found


def mean(seconds: float, one: Callable[[], object]) -> float:
    """Microseconds of one operation, on average over `seconds`: the occasional work of an observer counts."""
    one()
    begin, count = time.perf_counter(), 0
    while (spent := time.perf_counter() - begin) < seconds:
        one()
        count += 1
    return spent / count * 1e6


def spawned(procs: ProcMesh) -> None:
    member = procs.spawn("more", Member)
    member.nothing.call_one().get()
    member.stop().get()


def alternating(rounds: int, seconds: float, only: str) -> None:
    procs = this_host().spawn_procs(per_host={"procs": 4})
    one = procs.slice(procs=0)
    member, waiting, members = one.spawn("member", Member), one.spawn("waiting", Waiting), procs.spawn("members", Member)
    members.nothing.call().get()
    collector = this_host().spawn_procs(name="collector").spawn("collector", Collector)

    def pipelined() -> None:
        for future in [member.nothing.call_one() for _ in range(100)]:
            future.get()

    # The operation, and its number of calls.
    cases: dict[str, tuple[Callable[[], object], int]] = {
        "call": (lambda: member.nothing.call_one().get(), 1),
        "async call": (lambda: waiting.nothing.call_one().get(), 1),
        "call on 4": (lambda: members.nothing.call().get(), 1),
        "pipelined call": (pipelined, 100),
        "spawn and stop of an actor": (lambda: spawned(one), 1),
    }

    def off() -> Callable[[], object]:
        return lambda: None

    def observed(columns: bool, every: float = 0.2) -> Callable[[], object]:
        return events.observe(Counter(columns), every=every).stop

    def collected() -> Callable[[], object]:
        collector.attach.call_one().get()
        return lambda: collector.detach.call_one().get()

    modes: dict[str, Callable[[], Callable[[], object]]] = {
        "off": off,
        "recorded": partial(observed, True, NEVER),
        "collector": collected,
        "columns": partial(observed, True),
        "objects": partial(observed, False),
    }
    for case, (operation, each) in cases.items():
        if only not in case:
            continue
        found: dict[str, list[float]] = {mode: [] for mode in modes}
        order = list(modes)
        for _ in range(rounds):
            for mode in order:
                end = modes[mode]()
                found[mode].append(mean(seconds, operation) / each)
                end()
            # No mode always follows the same one.
            order = [*order[1:], order[0]]
        best = {mode: round(min(one), 2) for mode, one in found.items()}
        ratios = {
            mode: round(statistics.median(a / b for a, b in zip(found[mode], found["off"], strict=True)), 3)
            for mode in modes
            if mode != "off"
        }
        micros = {mode: round(statistics.median(one), 2) for mode, one in found.items()}
        print(json.dumps({"case": case, "us": micros, "least_us": best, "ratio": ratios}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--case", help="only the cases whose names contain this")
    arguments = parser.parse_args()
    require(cargo())
    print(json.dumps({"case": "one event", **one_event()}), flush=True)
    print(json.dumps({"case": "draining", **{key: round(value, 1) for key, value in draining(arguments.rounds).items()}}), flush=True)
    alternating(arguments.rounds, arguments.seconds, arguments.case or "")


if __name__ == "__main__":
    main()
