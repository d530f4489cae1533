"""Programs of torchrun, unchanged, as a run of Monarch: a rank is killed, and training continues from the last checkpoint.

    python main.py [ddp|fsdp] [--ranks N] [--steps N]

train_ddp.py and train_fsdp.py are ordinary programs: `torchrun --nproc-per-node=2 train_ddp.py` runs them as well. Here `run` starts them
on this host. Rank 1 kills itself at step 50 of the first attempt. The policy allows one restart, so both ranks start again, from the
checkpoint after step 40. Hosts of a job take the place of `this_host()` on a cluster.

Needs monarch-spmd and torch.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from monarch.actor import this_host
from monarch.spmd import RestartPolicy, run

HERE = Path(__file__).resolve().parent


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small transformer, and lose a rank on the way.")
    parser.add_argument("kind", nargs="?", choices=("ddp", "fsdp"), default="ddp", help="which program runs (default: %(default)s)")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=80)
    options = parser.parse_args()

    with tempfile.TemporaryDirectory(prefix="checkpoints-") as checkpoints:
        program = [str(HERE / f"train_{options.kind}.py"), f"--steps={options.steps}", f"--checkpoints={checkpoints}", "--kill", "1", "50"]
        policy = RestartPolicy(max_restarts=1, backoff=(0.1, 1.0))
        running = run(this_host(), ["torchrun", f"--nproc-per-node={options.ranks}", *program], policy=policy)
        try:
            result = running.result.get()
        finally:
            running.stop().get()  # after Ctrl-C the ranks still run, and use the folder; else they have ended
    print(f"{result.world_size} ranks trained {options.steps} steps in {result.attempts} attempts, {result.seconds:.1f} s")


if __name__ == "__main__":
    main()
