"""Reads and writes by verbs beside perftest, in one run, as ratios: `python -m tools.vm run python bench/rdma_verbs.py`.

Two processes, one wire, two soft-RoCE devices. Rounds of both take turns, because an emulated machine is as fast as its host has time for
it. What it prints is JSON lines: MB/s of each, medians of the rounds, and the ratio.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "packages" / "monarch-rdma" / "tests"), str(ROOT / "packages" / "monarch-rdma" / "python")]

from verbs_far import Far  # noqa: E402
from verbs_reader import Reader  # noqa: E402

_AVERAGE = re.compile(r"^\s*\d+\s+\d+\s+[\d.]+\s+([\d.]+)\s", re.MULTILINE)
MIB = 1 << 20


def perftest(program: str, nbytes: int, count: int) -> float:
    """MiB/s, as perftest says."""
    flags = ["-x", "1", "-s", str(nbytes), "-n", str(count), "-F"]
    server = subprocess.Popen(["stdbuf", "-oL", program, "-d", "rxe1", *flags], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert server.stdout is not None
    # It says so when it listens.
    for line in server.stdout:
        if "Waiting for client" in line:
            break
    client = subprocess.run([program, "-d", "rxe0", *flags, "10.99.0.2"], capture_output=True, text=True, check=True)
    server.communicate()
    found = _AVERAGE.search(client.stdout)
    assert found is not None, client.stdout
    return float(found[1])


def ours(reader: Reader, write: bool, nbytes: int, count: int) -> float:
    """MiB/s of that many pieces in one transfer."""
    room = len(reader.memory) // nbytes
    ranges = [(i % room * nbytes, nbytes) for i in range(count)]
    start = time.perf_counter()
    transfer = reader.move(write, *ranges, timeout=300.0)
    took = time.perf_counter() - start
    assert transfer.state == "complete", transfer.attempts
    return count * nbytes / MIB / took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--sizes", type=int, nargs="+", default=[MIB])
    options = parser.parse_args()
    owner = Far("rxe1")
    reader = Reader(owner.ask, ("rxe0",), 8 * MIB)
    ours(reader, False, MIB, 8)
    for nbytes in options.sizes:
        for name, write in (("read", False), ("write", True)):
            theirs, mine = [], []
            for _ in range(options.rounds):
                theirs.append(perftest(f"ib_{name}_bw", nbytes, options.count))
                mine.append(ours(reader, write, nbytes, options.count))
            ratio = statistics.median(mine) / statistics.median(theirs)
            row = {"what": name, "bytes": nbytes, "perftest": theirs, "ours": [round(one, 2) for one in mine], "ratio": round(ratio, 3)}
            print(json.dumps(row), flush=True)
    reader.close()
    owner.end()


if __name__ == "__main__":
    main()
