"""Starts of ranks and repeated runs of an empty program on the same hosts, beside torchrun of an optional environment.

    python bench/spmd_runs.py [--ranks 2,8,32] [--runs 7] [--torchrun PATH/TO/torchrun] [--json]

Each number is the median of the runs, in seconds, with the least and the most. `run` is `monarch.spmd.run` on existing hosts, `cold`
is `monarch run` as a command with all its start-up, which is comparable with torchrun as a command.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from monarch.actor import this_host
from monarch.spmd import run


def timed(action: Callable[[], object], runs: int) -> dict[str, float]:
    """Median, least and most seconds, after one run that does not count."""
    action()
    found: list[float] = []
    for _ in range(runs):
        begin = time.perf_counter()
        action()
        found.append(time.perf_counter() - begin)
    return {"median": statistics.median(found), "least": min(found), "most": max(found)}


def command(*words: str) -> None:
    subprocess.run(words, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="2,8,32")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--torchrun")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found: dict[str, dict[str, float]] = {}
    monarch = str(Path(sys.executable).with_name("monarch"))
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "empty.py")
        program.write_text("")
        for ranks in map(int, options.ranks.split(",")):
            launch = [f"--nproc-per-node={ranks}", str(program)]
            found[f"run, {ranks} ranks"] = timed(lambda words=launch: run(this_host(), ["torchrun", *words]).result.get(), options.runs)
            found[f"cold, {ranks} ranks"] = timed(lambda words=launch: command(monarch, "run", "--local", *words), options.runs)
            if options.torchrun:
                found[f"torchrun, {ranks} ranks"] = timed(lambda words=launch: command(options.torchrun, *words), options.runs)
    if options.json:
        print(json.dumps(found, indent=1))
        return
    for name, one in found.items():
        print(f"{name:<22} {one['median']:.3f} s  ({one['least']:.3f} to {one['most']:.3f})")


if __name__ == "__main__":
    main()
