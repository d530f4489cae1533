"""The time from the death of a rank of a replica group to the next step of the others, with groups on hosts of their own.

    python -m tools.with_torch python bench/replica_groups.py [--hosts N] [--runs N]

Runs examples/replica_groups with one group a host, in network namespaces, and on one host for comparison; needs root. A rank kills itself,
or all processes of its host with their worker.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from requirement import namespaces, require

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.netns.cluster import Cluster, Worker
from tools.project import ROOT

EXAMPLE = str(ROOT / "examples" / "replica_groups" / "main.py")


def figures(text: str) -> tuple[int, int]:
    """Milliseconds from the kill to the next step without the group, and of a step."""
    found = re.search(r"without the group: (\d+) ms, of which a step takes (\d+) ms", text)
    if found is None or not text.endswith("passed\n"):
        raise SystemExit(text)
    return int(found[1]), int(found[2])


def on_hosts(count: int, *more: str) -> tuple[int, int]:
    with tempfile.TemporaryDirectory() as folder, Cluster(count, Path(folder), "") as cluster:
        cluster.workers = [Worker(host, cluster.env, cluster.secret) for host in cluster.hosts]
        words = ["--groups", str(count), *more, "--secret", str(cluster.secret)]
        words += ["--workers", *(worker.address for worker in cluster.workers)]
        return figures(cluster.client_host.run(sys.executable, EXAMPLE, *words, env=cluster.env, capture_output=True).stdout)


def here(count: int) -> tuple[int, int]:
    return figures(subprocess.run([sys.executable, EXAMPLE, "--groups", str(count)], check=True, capture_output=True, text=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure how fast replica groups go on after a death.")
    parser.add_argument("--hosts", type=int, default=3, help="with a group each (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    require(namespaces())
    cases = (
        (f"{options.hosts} hosts", lambda: on_hosts(options.hosts)),
        (f"{options.hosts} hosts, of which one is lost", lambda: on_hosts(options.hosts, "--lose-host")),
        ("one host", lambda: here(options.hosts)),
    )
    for what, measure in cases:
        found = [measure() for _ in range(options.runs)]
        kills, steps = zip(*found, strict=True)
        ratios = ", ".join(f"{kill / step:.1f}" for kill, step in found)
        print(f"{what}: from the kill to the next step {statistics.median(kills):.0f} ms ({min(kills)} to {max(kills)}); ", end="")
        print(f"a step {statistics.median(steps):.0f} ms; ratios {ratios}", flush=True)


if __name__ == "__main__":
    main()
