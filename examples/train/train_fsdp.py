"""The same training with FSDP2: each rank holds a shard of parameters, gradients and the optimizer's state.

    torchrun --nproc-per-node=2 train_fsdp.py [--steps N] [--checkpoints DIR] [--kill RANK STEP]

Options are those of train_ddp.py. All ranks write their shards of a checkpoint together, `torch.distributed.checkpoint`; it may be loaded
by another number of ranks.
"""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from char_model import CharModel, batch
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

BATCH = 16
SAVE_EVERY = 20


def last_step(checkpoints: Path) -> int:
    """The step of the last complete checkpoint, 0 without one. Its metadata is written last."""
    return max((int(path.parent.name) for path in checkpoints.glob("*/.metadata")), default=0)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small transformer with fully_shard.")
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--checkpoints", type=Path, metavar="DIR", help="where to save, and what to go on from (default: nowhere)")
    parser.add_argument("--kill", type=int, nargs=2, metavar=("RANK", "STEP"), help="which rank dies, and when")
    options = parser.parse_args()

    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    torch.manual_seed(0)
    model = CharModel()
    mesh = init_device_mesh("cpu", (ranks,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    first = last_step(options.checkpoints) if options.checkpoints else 0
    if first:
        weights, moments = get_state_dict(model, optimizer)
        dcp.load({"model": weights, "optimizer": moments}, checkpoint_id=options.checkpoints / str(first))
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
    if rank == 0:
        held = sum(parameter.to_local().numel() for parameter in model.parameters())
        print(f"attempt {attempt} of {ranks} ranks starts at step {first}; rank 0 holds {held:,} parameters", flush=True)

    for step in range(first, options.steps):
        if attempt == 0 and options.kill == [rank, step]:
            print(f"dies at step {step}", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
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
        if options.checkpoints and done % SAVE_EVERY == 0:
            weights, moments = get_state_dict(model, optimizer)
            dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=options.checkpoints / str(done))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
