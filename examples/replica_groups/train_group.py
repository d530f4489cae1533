"""A rank of a replica group: data-parallel training within the group, gradients averaged with the other groups of the quorum.

    torchrun --nproc-per-node=2 train_group.py --group N [--kill RANK STEP]

The variables LIGHTHOUSE... name the lighthouse; main.py sets them. A group that has just started is behind the others, and takes parameters
and the optimizer's state from one of them.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from replicas import Replicas
from torch.nn.parallel import DistributedDataParallel

sys.path.append(str(Path(__file__).resolve().parents[1] / "train"))  # the model of all examples with torch

from char_model import CharModel, batch

BATCH = 4


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small transformer as one of several replica groups.")
    parser.add_argument("--group", type=int, required=True)
    parser.add_argument("--kill", type=int, nargs=2, metavar=("RANK", "STEP"), help="which rank of the first attempt dies, and when")
    options = parser.parse_args()

    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    torch.manual_seed(0)
    model = DistributedDataParallel(CharModel())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    step, loss = 0, torch.zeros(1)

    def state() -> dict[str, Any]:
        return {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}

    def load(saved: dict[str, Any]) -> None:
        nonlocal step
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]

    replicas = Replicas(options.group)
    while not (quorum := replicas.next_quorum(step))["over"]:
        if not replicas.connect():
            continue
        if quorum["behind"]:
            if not replicas.catch_up(state, load):
                continue
            if rank == 0 and options.group in quorum["behind"]:
                print(f"group {options.group}: attempt {attempt} goes on at step {step}, from group {quorum['source']}", flush=True)
        if attempt == 0 and options.kill == [rank, step]:
            print(f"group {options.group}: rank {rank} dies at step {step}", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        loss = model(*batch(BATCH, seed=(step * 100 + options.group) * ranks + rank))
        optimizer.zero_grad()
        loss.backward()
        if not replicas.average([parameter.grad for parameter in model.parameters() if parameter.grad is not None]):
            continue
        optimizer.step()
        step += 1
        if rank == 0 and options.group == quorum["groups"][0] and (step == 1 or step % 20 == 0):
            print(f"step {step:3}: loss {loss.item():.3f}, groups in the quorum: {len(quorum['groups'])}", flush=True)

    if rank == 0:
        content = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
        replicas.tell({"report": {"step": step, "loss": loss.item(), "parameters": hashlib.sha256(content).hexdigest()[:16]}})
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
