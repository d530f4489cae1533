"""The same model with Accelerate of Hugging Face: `prepare` takes model, optimizer and loader, and the loop stays that of one process.

    torchrun --nproc-per-node=2 train.py [--epochs N]

`main.py` runs it with Monarch. Needs torch and accelerate.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader

sys.path.append(str(Path(__file__).resolve().parents[1] / "train"))  # the model of all examples with torch

from char_model import CharModel, Windows

BATCH = 16
WINDOWS = 960


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small transformer with Accelerate.")
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()

    # Rank and world size come from the variables of torchrun.
    accelerator = Accelerator(cpu=True)
    set_seed(0)
    model = CharModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(Windows(WINDOWS), BATCH, shuffle=True))

    for epoch in range(options.epochs):
        losses: list[torch.Tensor] = []
        for windows, targets in loader:
            loss = model(windows, targets)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            losses.append(loss.detach())
        mean = accelerator.reduce(torch.stack(losses).mean(), reduction="mean")
        accelerator.print(f"epoch {epoch}: loss {mean.item():.3f}", flush=True)
    print(f"rank {accelerator.process_index} of {accelerator.num_processes} is done, by {accelerator.distributed_type.value}", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()
