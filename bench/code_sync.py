"""The duration of a code sync, and the bytes that it sends.

    python bench/code_sync.py [--files 30000] [--hosts 1] [--rounds 7]

A tree of Python files of 5 kB on the average, 50 in a directory. Hosts are processes of this machine with directories of their own, so
sender and receivers share its processors and its disk. The first sync reads and writes everything, "unchanged" scans both sides and
finds nothing, "edited" is one file of 5 kB. Bytes are those sent to each host. For "unchanged" and "edited" the sender's processor time
is given too, and "host_look" is that of a receiver that finds its copy unchanged: the two run side by side, and are the part of the
time that other load on the machine does not affect. Prints one JSON line for each case.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "packages/monarch-core/tests/process"))

from workspace_hosts import OtherHosts

from monarch._core.sync.mirror import Mirror
from monarch.actor import Workspace

LINE = re.compile(r": (\d+) files?, ([\d.]+) (B|KiB|MiB|GiB) to")
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def make_tree(top: Path, files: int) -> int:
    """Makes the tree; returns its bytes."""
    chosen = random.Random(0)
    size = 0
    for i in range(files):
        directory = top / f"package{i // 1000}" / f"part{i // 50 % 20}"
        if i % 50 == 0:
            directory.mkdir(parents=True)
        text = f"# {i}\n" + f"value = {chosen.random()}\n" * chosen.randint(10, 340)
        size += len(text)
        (directory / f"module{i % 50}.py").write_text(text)
    return size


def sync(hosts: OtherHosts, workspace: Workspace) -> tuple[float, int, float, float]:
    """Milliseconds, files, bytes, milliseconds of processor time here."""
    out = io.StringIO()
    start, used = time.perf_counter(), time.process_time()
    with contextlib.redirect_stdout(out):
        hosts.sync(workspace)
    taken, used = 1000 * (time.perf_counter() - start), 1000 * (time.process_time() - used)
    found = LINE.search(out.getvalue())
    assert found is not None, out.getvalue()
    return taken, int(found[1]), float(found[2]) * UNITS[found[3]], used


def report(case: str, found: list[tuple[float, int, float, float]]) -> None:
    times = [t for t, *_ in found]
    line = {"bench": f"code_sync/{case}", "unit": "ms", "n": len(found), "p50": statistics.median(times), "min": min(times)}
    line |= {"files": found[-1][1], "bytes": max(b for _, _, b, _ in found), "cpu": statistics.median(u for *_, u in found)}
    print(json.dumps({k: round(v, 1) if isinstance(v, float) else v for k, v in line.items()}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=30_000)
    parser.add_argument("--hosts", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = f"{folder}/cache"
        top = Path(folder) / "source"
        size = make_tree(top, given.files)
        # Data that was just written must not be on its way to the disk during the measurement.
        subprocess.run(["sync"], check=True)
        hosts = OtherHosts([Path(folder) / f"host{i}" for i in range(given.hosts)])
        for directory in hosts.directories:
            directory.mkdir()
        workspace = Workspace({top: "code"}, env=None)
        print(json.dumps({"files": given.files, "bytes": size, "hosts": given.hosts}))
        report("first", [sync(hosts, workspace)])
        report("unchanged", [sync(hosts, workspace) for _ in range(given.rounds)])
        edited = top / "package7" / "part7" / "module7.py"
        found: list[tuple[float, int, float, float]] = []
        for i in range(given.rounds + 1):
            edited.write_text(f"edited = {i}\n" + "x = 12345\n" * 500)
            found.append(sync(hosts, workspace))
        report("second_tree", found[:1])
        report("edited", found[1:])
        used: list[float] = []
        for _ in range(given.rounds):
            start = time.process_time()
            Mirror(str(hosts.directories[0]), "code").close()
            used.append(1000 * (time.process_time() - start))
        print(json.dumps({"bench": "code_sync/host_look", "unit": "ms", "cpu": round(statistics.median(used), 1)}))


if __name__ == "__main__":
    main()
