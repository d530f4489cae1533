"""The time of `import monarch.actor` in fresh processes, without monarch-compat and with it, in turns.

    python bench/import_time.py [--rounds 60]

A process imports once; the line of each side has the median of its processes with its quartiles, the last line the median of the
differences of neighbours.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path

COMPAT = Path(__file__).resolve().parent.parent / "packages" / "monarch-compat" / "python"
_CODE = "import time; start = time.perf_counter(); import monarch.actor; print((time.perf_counter() - start) * 1e3)"


def milliseconds(path: Path) -> float:
    """The time of the import in a new process whose path of modules begins with this folder."""
    variables = {**os.environ, "PYTHONPATH": str(path)}
    return float(subprocess.run([sys.executable, "-c", _CODE], env=variables, check=True, stdout=subprocess.PIPE, text=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description="The time of `import monarch.actor`, without and with monarch-compat.")
    parser.add_argument("--rounds", type=int, default=60)
    rounds = parser.parse_args().rounds
    # A folder without modules takes the place of the wheel: both sides search the same number of folders.
    sides = {"without monarch-compat": Path(__file__).resolve().parent, "with monarch-compat": COMPAT}
    for path in sides.values():
        milliseconds(path)  # the first process writes the compiled files
    pairs = [[milliseconds(path) for path in sides.values()] for _ in range(rounds)]
    for name, times in zip(sides, zip(*pairs, strict=True), strict=True):
        low, middle, high = statistics.quantiles(times)
        print(f"{name}: {middle:.2f} ms ({low:.2f} to {high:.2f})")
    print(f"difference: {statistics.median(after - before for before, after in pairs):+.2f} ms")


if __name__ == "__main__":
    main()
