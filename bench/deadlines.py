"""What a deadline costs: a call with one beside a call without, and the next call after many that expire together.

    python bench/deadlines.py [--turns 200] [--expire 1000]

A turn is 200 calls of a sync endpoint, one after another. Turns without a deadline, with one block of `deadline` around the turn, and with
a block around each call follow each other in one process, and each is compared with the turn without a deadline beside it. The cost of
sending is measured alone: 1,000 calls are sent, and their answers are read outside of the measured time. The processor time of both
processes, all threads included, is measured in turns of 1,000 calls: it has less noise than the time of a call.

Then `--expire` calls wait for a busy actor and expire together, and calls to another actor of the same process begin at that moment: the
slowest of these calls is compared with the slowest one without expiring calls beside it. `--rounds` of both alternate.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from monarch.actor import Actor, deadline, endpoint, this_host

CALLS, SENT = 200, 1_000
LONG = 3600.0


class Answering(Actor):
    @endpoint
    def answer(self) -> None: ...

    @endpoint
    def processor(self) -> float:
        """Seconds of processor that this process has used."""
        return time.process_time()

    @endpoint
    def hold(self, seconds: float) -> None:
        threading.Event().wait(seconds)


def one_by_one(call: Callable[[], Any], around: Callable[[], AbstractContextManager[Any]]) -> float:
    """Microseconds of one call, with a block around each."""
    start = time.perf_counter()
    for _ in range(CALLS):
        with around():
            call().get()
    return (time.perf_counter() - start) / CALLS * 1e6


def sending(call: Callable[[], Any]) -> float:
    """Microseconds of sending one call."""
    start = time.perf_counter()
    futures = [call() for _ in range(SENT)]
    took = (time.perf_counter() - start) / SENT * 1e6
    for future in futures:
        future.get()
    return took


def show(name: str, values: list[float], beside: list[float]) -> None:
    differences = [value - other for value, other in zip(values, beside, strict=True)]
    low, middle, high = statistics.quantiles(differences, n=4)
    print(f"{name:44} {statistics.median(values):8.2f} us   {middle:+.2f} us ({low:+.2f} to {high:+.2f})", flush=True)


def costs(call: Callable[[], Any], turns: int) -> None:
    without: list[float] = []
    shielded: list[float] = []
    block: list[float] = []
    each: list[float] = []
    sent: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(turns):
        without.append(one_by_one(call, nullcontext))
        shielded.append(one_by_one(call, nullcontext))
        with deadline(LONG):
            block.append(one_by_one(call, nullcontext))
        each.append(one_by_one(call, lambda: deadline(LONG)))
        sent[False].append(sending(call))
        with deadline(LONG):
            sent[True].append(sending(call))
    show("a call without a deadline", without, without)
    show("the same again: what the machine adds", shielded, without)
    show("a call in a block of 200", block, without)
    show("a call with a block of its own", each, without)
    show("sending a call without a deadline", sent[False], sent[False])
    show("sending a call in a block of 1,000", sent[True], sent[False])


def processor(call: Callable[[], Any], receiver: Callable[[], Any]) -> tuple[float, float]:
    """Microseconds of processor for one call: of the caller and of the receiver."""
    own, other = time.process_time(), receiver().get()
    for _ in range(SENT):
        call().get()
    ended = receiver().get()
    return (time.process_time() - own) / SENT * 1e6, (ended - other) / SENT * 1e6


def processor_costs(call: Callable[[], Any], receiver: Callable[[], Any], turns: int) -> None:
    without: list[tuple[float, float]] = []
    block: list[tuple[float, float]] = []
    for _ in range(turns):
        before = processor(call, receiver)
        with deadline(LONG):
            block.append(processor(call, receiver))
        after = processor(call, receiver)
        without.append(((before[0] + after[0]) / 2, (before[1] + after[1]) / 2))
    for side, name in enumerate(("caller", "receiver")):
        show(f"processor time of the {name}, in a block", [turn[side] for turn in block], [turn[side] for turn in without])


def expiring(busy: Any, call: Callable[[], Any], count: int, seconds: float) -> float:
    """Milliseconds of the slowest of some calls that begin when others expire."""
    held = busy.hold.call_one(2 * seconds)
    with deadline(seconds):
        at = time.monotonic() + seconds
        futures = [busy.answer.call_one() for _ in range(count)]
    slowest = 0.0
    time.sleep(max(0.0, at - 0.002 - time.monotonic()))
    end = at + 0.02
    while time.monotonic() < end:
        start = time.perf_counter()
        call().get()
        slowest = max(slowest, time.perf_counter() - start)
    held.get()
    del futures
    return slowest * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench/deadlines.py", description="The costs of deadlines.")
    parser.add_argument("--turns", type=int, default=200, help="of each kind of call")
    parser.add_argument("--expire", type=int, default=1_000, help="calls that expire together")
    parser.add_argument("--rounds", type=int, default=15, help="of expiring calls, with and without")
    arguments = parser.parse_args()
    with this_host().spawn_procs({"procs": 2}) as procs:
        answering, busy = procs.slice(procs=0).spawn("answering", Answering), procs.slice(procs=1).spawn("busy", Answering)
        call = answering.answer.call_one
        start = time.perf_counter()
        for _ in range(5):
            one_by_one(call, nullcontext)
        before = [one_by_one(call, nullcontext) for _ in range(arguments.turns)]
        print(f"{'a call before the first deadline':44} {statistics.median(before):8.2f} us", flush=True)
        costs(call, arguments.turns)
        processor_costs(call, answering.processor.call_one, arguments.turns // 2)
        beside: list[float] = []
        alone: list[float] = []
        seconds = 0.2
        for _ in range(arguments.rounds):
            alone.append(expiring(busy, call, 0, seconds))
            beside.append(expiring(busy, call, arguments.expire, seconds))
        for name, all_of_them in (("nothing expires", alone), (f"{arguments.expire:,} calls expire", beside)):
            shown = f"{statistics.median(all_of_them):8.2f} ms   ({min(all_of_them):.2f} to {max(all_of_them):.2f})"
            print(f"{'slowest call in 22 ms, ' + name:44} {shown}")
        print(f"all of it: {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
