"""Calls and tensor operators of two checkouts in turns: what a change costs.

    python bench/turns.py OTHER [--turns 300] [--pairs 3] [PART...]

OTHER is a checkout with a built native module, as it was before the change: `git worktree add OTHER COMMIT`, and `python -m
tools.build_native` there. Each checkout has a process with its wheels. The two work in turns of some 20 ms, and each turn of one is
divided by the turn of the other beside it, so that the load of other programs and the speed of the processor are in both. Pairs of
processes are started anew, because the layout of memory differs from process to process.

| part | a turn |
|---|---|
| async | 200 calls of an async endpoint, one after another |
| sync | the same of a sync endpoint |
| at_once | 1,000 calls of an async endpoint, then their answers |
| operator | 1,000 operators on tensors of 4 elements, 1 worker; then its end is awaited |
| step | 10 training steps of a small perceptron, 1 worker |

All by default; `operator` and `step` run by `python -m tools.with_torch python bench/turns.py ...`. A line has the median time of one call,
operator or step on each side, the median of the ratios with its quartiles, and the median ratio of each pair of processes.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

from requirement import module, require

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("async", "sync", "at_once", "operator", "step")
CALLS, AT_ONCE, OPERATORS, STEPS = 200, 1_000, 1_000, 10
_WARM_UP_TURNS = 5


# ---- one side


@contextlib.contextmanager
def _calls(part: str) -> Generator[tuple[int, Callable[[], object]]]:
    from monarch.actor import Actor, endpoint, this_host

    class AsyncAnswering(Actor):
        @endpoint
        async def answer(self) -> None: ...

    class SyncAnswering(Actor):
        @endpoint
        def answer(self) -> None: ...

    procs = this_host().spawn_procs(per_host={"procs": 1})
    actor = procs.spawn("answering", SyncAnswering if part == "sync" else AsyncAnswering)
    call = actor.answer.call_one

    def one_by_one() -> None:
        for _ in range(CALLS):
            call().get()

    def at_once() -> None:
        for answer in [call() for _ in range(AT_ONCE)]:
            answer.get()

    yield (AT_ONCE, at_once) if part == "at_once" else (CALLS, one_by_one)
    procs.stop().get()


@contextlib.contextmanager
def _tensors(part: str) -> Generator[tuple[int, Callable[[], object]]]:
    import torch
    from tensor import chain, workers
    from tensor_models import perceptron

    with workers(1) as mesh:
        value, by = torch.ones(4), torch.ones(4)
        step = perceptron(width=96, batch=64, device="cpu")

        def operators() -> None:
            last = chain(OPERATORS, value, by)
            mesh.check()
            del last

        def steps() -> None:
            for _ in range(STEPS):
                step()
            mesh.check()

        yield (OPERATORS, operators) if part == "operator" else (STEPS, steps)


def serve(part: str) -> None:
    """One side: a turn for each line of its standard input, answered by the microseconds of one call, operator or step."""
    with (_tensors if part in ("operator", "step") else _calls)(part) as (count, turn):
        for _ in range(_WARM_UP_TURNS):
            turn()
        print("ready", flush=True)
        for _ in sys.stdin:
            start = time.perf_counter()
            turn()
            print((time.perf_counter() - start) / count * 1e6, flush=True)


# ---- both sides


class Side:
    """A process with the wheels of one checkout."""

    def __init__(self, checkout: Path, part: str) -> None:
        folders = [str(p) for p in sorted(checkout.glob("packages/*/python"))]
        # The other checkout's wheels and this checkout's bench.
        rest = [str(ROOT / "bench"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*folders, *rest])}
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--serve", part, str(checkout)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._checkout = checkout
        self._line()

    def turn(self) -> float:
        """One turn, in microseconds of one call, operator or step."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return float(self._line())

    def end(self) -> None:
        """The end of the process, which is awaited."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"bench/turns.py: the process with the wheels of {self._checkout} ended with code {self._process.wait()}")
        return line


def compare(part: str, other: Path, turns: int, pairs: int) -> str:
    """The line of a part."""
    before: list[float] = []
    after: list[float] = []
    of_pairs: list[float] = []
    for _ in range(pairs):
        theirs, ours = Side(other, part), Side(ROOT, part)
        ratios: list[float] = []
        for turn in range(turns):
            # Each side is the first of every second turn.
            if turn % 2:
                b, a = theirs.turn(), ours.turn()
            else:
                a, b = ours.turn(), theirs.turn()
            before.append(b)
            after.append(a)
            ratios.append(a / b)
        theirs.end()
        ours.end()
        of_pairs.append(statistics.median(ratios))
    low, middle, high = statistics.quantiles([a / b for a, b in zip(after, before, strict=True)], n=4)
    each = ", ".join(f"{r:.3f}" for r in of_pairs)
    return (
        f"{part:10} before {statistics.median(before):8.2f} us   after {statistics.median(after):8.2f} us   "
        f"ratio {middle:.3f} ({low:.3f} to {high:.3f})   of each pair of processes: {each}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench/turns.py", description="Calls and tensor operators of two checkouts in turns.")
    parser.add_argument("other", type=Path, metavar="OTHER", help="a checkout with a built native module")
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--turns", type=int, default=300, help="of each side and pair of processes")
    parser.add_argument("--pairs", type=int, default=3, help="of processes")
    parser.add_argument("--serve", choices=PARTS, help=argparse.SUPPRESS)
    arguments: Any = parser.parse_intermixed_args()
    if arguments.serve:
        serve(arguments.serve)
        return
    parts = arguments.parts or PARTS
    for part in parts:
        if part not in PARTS:
            parser.error(f"{part} is no part: {', '.join(PARTS)}")
    other = arguments.other.resolve()
    for checkout in (other, ROOT):
        if not list(checkout.glob("packages/monarch-core/python/monarch/_core/_native*.so")):
            parser.error(f"{checkout} has no native module: run `python -m tools.build_native` there")
    if {"operator", "step"} & set(parts):
        require(module("torch", "python -m tools.side_venv torch, then python -m tools.with_torch python bench/turns.py"))
    for part in parts:
        print(compare(part, other, arguments.turns, arguments.pairs), flush=True)


if __name__ == "__main__":
    main()
