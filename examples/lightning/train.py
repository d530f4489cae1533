"""The same model with Lightning: its Trainer finds the variables of torchrun, and starts no processes itself.

    torchrun --nproc-per-node=2 train.py [--ranks N] [--epochs N]

`main.py` runs it with Monarch. Needs torch and lightning.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from pathlib import Path

import torch
from lightning import LightningModule, Trainer
from torch import Tensor
from torch.utils.data import DataLoader

sys.path.append(str(Path(__file__).resolve().parents[1] / "train"))  # the model of all examples with torch

from char_model import CharModel, Windows

BATCH = 16
WINDOWS = 960


class Learner(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = CharModel()

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        loss = self.model(*batch)
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def on_train_epoch_end(self) -> None:
        # Lightning has averaged it over batches and ranks.
        if self.trainer.is_global_zero:
            print(f"epoch {self.current_epoch}: loss {self.trainer.callback_metrics['loss'].item():.3f}", flush=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small transformer with Lightning.")
    parser.add_argument("--ranks", type=int, default=2, help="on each host (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    # The data is in memory: processes that load it would be of no use.
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")

    trainer = Trainer(
        accelerator="cpu",
        devices=options.ranks,
        strategy="ddp",
        max_epochs=options.epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    # Lightning gives each rank a sampler with its part of the windows.
    trainer.fit(Learner(), DataLoader(Windows(WINDOWS), BATCH, shuffle=True))
    environment = type(trainer.strategy.cluster_environment).__name__
    print(f"rank {trainer.global_rank} of {trainer.world_size} is done, by {environment}", flush=True)


if __name__ == "__main__":
    main()
