"""A program of Lightning as a run of Monarch: two ranks on this host.

    python main.py [--ranks N] [--epochs N]

`run` sets the variables that torchrun sets, and Lightning takes rank and world size from them. Needs monarch-spmd, torch and lightning.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from monarch.actor import this_host
from monarch.spmd import run

PROGRAM = Path(__file__).resolve().with_name("train.py")


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small transformer with Lightning.")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()

    launch = ["torchrun", f"--nproc-per-node={options.ranks}", str(PROGRAM), f"--ranks={options.ranks}", f"--epochs={options.epochs}"]
    result = run(this_host(), launch).result.get()
    print(f"{result.world_size} ranks trained {options.epochs} epochs in {result.seconds:.1f} s")


if __name__ == "__main__":
    main()
