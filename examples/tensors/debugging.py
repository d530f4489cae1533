"""A debugging session: a training of four processes has a loss that is no number, and the program looks for the reason.

    python debugging.py

Each process draws images of its own. One of them scales its images wrongly. The session goes from the loss to that process and to its
image, as one would do it in a notebook, cell by cell: `inspect` brings numbers to this process, and `show` pictures. Then an operation
fails on one process, and its error names the place. The picture that a notebook shows is written to `wrong.png` in the current folder.

Needs monarch-tensor and torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from monarch import tensor as monarch
from monarch.actor import this_host
from monarch.tensor import inspect, show

RANKS, WRONG, STEPS, SIZE = 4, 2, 5, 16


def images(rank: Any) -> Any:
    """Eight images of each process, bright in the middle; those of one process are divided by a value that is zero near the border."""
    line = torch.linspace(-1.0, 1.0, SIZE)
    bright = (1 - line[:, None].pow(2)) * (1 - line[None, :].pow(2))
    drawn = bright * torch.rand(8, 1, 1)
    # No `if` on the rank: its number is on the workers, and each of them computes both.
    return torch.where(rank == WRONG, drawn / (bright > 0.2), drawn)


def train(batches: list[Any]) -> tuple[Any, nn.Module]:
    """The model sees the mean brightness. Each process has its own images, and gradients are averaged."""
    monarch.manual_seed(0, per_rank=False)
    model = nn.Sequential(nn.Flatten(), nn.Linear(SIZE * SIZE, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loss = None
    for batch in batches:
        loss = (model(batch).squeeze(1) - batch.mean((1, 2))).pow(2).mean()
        loss.backward()
        for parameter in model.parameters():
            parameter.grad.reduce_("dp", "avg")
        optimizer.step()
        optimizer.zero_grad()
    return loss, model


def main() -> None:
    procs = this_host().spawn_procs({"dp": RANKS})
    with procs.activate() as mesh:
        monarch.manual_seed(1)
        batches = [images(mesh.rank("dp")) for _ in range(STEPS)]
        loss, model = train(batches)

        # This process knows shapes and places, and no numbers.
        print(loss.detach())
        # The numbers of one process. All have averaged their gradients, so all of them are wrong by now.
        print("loss on the first process:", inspect(loss.detach()).item())
        broken = [name for name, parameter in model.named_parameters() if not inspect(parameter.detach()).isfinite().all()]
        print("parameters that are no numbers:", ", ".join(broken))

        # The batch before the first step is each process's own: the numbers of all of them, in one tensor.
        finite = batches[0].isfinite().all().reduce("dp", "stack")
        wrong = [rank for rank, fine in enumerate(inspect(finite).tolist()) if not fine]
        print("processes with wrong images:", wrong)
        assert wrong == [WRONG]

        # That process's image beside the one of a neighbour.
        fine, bad = (inspect(batches[0][0], dp=rank) for rank in (0, WRONG))
        print(f"the corner of an image: {fine[1, 1]:.2f}, and on process {WRONG}: {bad[1, 1]:.2f}")
        places = ~batches[0][0].isfinite()
        picture: Any = show(places.to(torch.float32), dp=WRONG)  # the last value of a cell shows the picture
        Path("wrong.png").write_bytes(picture._repr_png_())
        print(picture, "in wrong.png: white where there is no number")

        # The same session with a failure. Here process 2 has a matrix without a root; the others continue, and nothing is raised yet.
        matrix = torch.eye(3) * torch.where(mesh.rank("dp") == WRONG, -1.0, 1.0)
        root = torch.linalg.cholesky(matrix)
        print("on the first process:", inspect(root).diagonal().tolist())
        try:
            inspect(root.sum(), dp=WRONG)
        except monarch.RemoteException as e:
            frame = e.controller_frames[0]
            print(f"process {e.rank}: {e.operation}, called in {frame.function}, line {frame.line}: {e.exception}")

        # Without those images the training is fine.
        monarch.manual_seed(1)
        repaired = [torch.nan_to_num(images(mesh.rank("dp")), posinf=0.0) for _ in range(STEPS)]
        loss, _ = train(repaired)
        print("loss without them:", round(inspect(loss.detach().reduce("dp", "avg")).item(), 4))
    procs.stop().get()


if __name__ == "__main__":
    main()
