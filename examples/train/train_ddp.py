"""Data-parallel training of a small transformer, as a program of torchrun, independent of Monarch.

    torchrun --nproc-per-node=2 train_ddp.py [--steps N] [--checkpoints DIR] [--kill RANK STEP]

With `--checkpoints`, rank 0 saves a checkpoint every SAVE_EVERY steps, and all ranks continue from the last one when they start. `--kill`
makes a rank kill itself before a step, in the first attempt only, as if the machine had run out of memory.
"""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist
from char_model import CharModel, batch
from torch.nn.parallel import DistributedDataParallel

BATCH = 16
SAVE_EVERY = 20


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small transformer with DistributedDataParallel.")
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--checkpoints", type=Path, metavar="DIR", help="where to save, and what to go on from (default: nowhere)")
    parser.add_argument("--kill", type=int, nargs=2, metavar=("RANK", "STEP"), help="which rank dies, and when")
    options = parser.parse_args()

    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    torch.manual_seed(0)
    model = DistributedDataParallel(CharModel())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    first = 0
    saved = options.checkpoints / "last.pt" if options.checkpoints else None
    if saved and saved.exists():
        state = torch.load(saved)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"]
    if rank == 0:
        print(f"attempt {attempt} of {ranks} ranks starts at step {first}", flush=True)

    for step in range(first, options.steps):
        if attempt == 0 and options.kill == [rank, step]:
            print(f"dies at step {step}", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        # The data depends on step and rank alone, so an attempt that continues gets the same data.
        loss = model(*batch(BATCH, seed=step * ranks + rank))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        done = step + 1
        if done % SAVE_EVERY == 0 or step == 0:
            mean = loss.detach() / ranks
            dist.all_reduce(mean)
            if rank == 0:
                print(f"step {done:3}: loss {mean.item():.3f}", flush=True)
        if saved and rank == 0 and done % SAVE_EVERY == 0:
            # The file is renamed when it is complete: a rank that dies while it writes leaves the previous checkpoint.
            state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": done}
            torch.save(state, saved.with_suffix(".new"))
            saved.with_suffix(".new").replace(saved)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
