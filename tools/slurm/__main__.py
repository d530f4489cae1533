"""A SLURM cluster on this machine.

    python -m tools.slurm up DIR [--nodes N] [--cpus C] [--memory MB] [--gpus G]
    python -m tools.slurm down DIR

`up` returns when all nodes are idle and prints the variables that a client needs in its environment.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tools import standing
from tools.slurm.cluster import SlurmCluster, missing
from tools.slurm.configuration import Node


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.slurm", description="A SLURM cluster on this machine.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    up = verbs.add_parser("up", help="start a cluster and wait until all nodes are idle")
    up.add_argument("directory", type=Path, metavar="DIR")
    for name, default in (("nodes", 3), ("cpus", Node().cpus), ("memory", Node().memory_mb), ("gpus", 0)):
        up.add_argument(f"--{name}", type=int, default=default)
    down = verbs.add_parser("down", help="end it, with its jobs")
    down.add_argument("directory", type=Path, metavar="DIR")
    options = parser.parse_args()
    if options.verb == "down":
        return standing.down(options.directory)
    if lacking := missing():
        print(lacking, file=sys.stderr)
        return 1
    cluster = SlurmCluster(options.directory, [Node(options.cpus, options.memory, options.gpus)] * options.nodes)
    return standing.up(options.directory, cluster, "\n".join(f"export {name}={value}" for name, value in cluster.env.items()))


if __name__ == "__main__":
    sys.exit(main())
