"""A model in two stages, each on processes of its own, trained by one program as if they were one.

    python pipeline.py [dora-dfs|gpipe|1f1b]

The batch is cut into microbatches, so that both stages compute at the same time. Activations go from the first mesh to the second one, and
gradients back. The same model is trained in this process as well, and the losses are equal.

Needs monarch-tensor and torch.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch import nn

from monarch import tensor as monarch
from monarch.actor import this_host
from monarch.tensor.pipelining import PipelineParallelism

WIDTH, BATCH, STEPS = 16, 16, 61


def parts() -> list[nn.Module]:
    """The two halves of the model."""
    return [
        nn.Sequential(nn.Linear(2, WIDTH), nn.Tanh()),
        nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1)),
    ]


def data(step: int) -> tuple[list[Any], list[Any]]:
    """One of four batches of points of a plane, and a number for each, as lists, which can be sent to any mesh."""
    generator = torch.Generator().manual_seed(step % 4)
    x = torch.rand(BATCH, 2, generator=generator)
    return x.tolist(), torch.sin(6 * x[:, :1] * x[:, 1:]).tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a model in two stages on two meshes.")
    parser.add_argument("schedule", nargs="?", choices=("dora-dfs", "gpipe", "1f1b"), default="dora-dfs")
    options = parser.parse_args()

    # The model in this process. The stages begin with its numbers.
    torch.set_num_threads(1)  # of this process: its model is small
    torch.manual_seed(0)
    local = parts()
    starts = [{name: value.tolist() for name, value in part.state_dict().items()} for part in local]

    # Two processes. Each is a mesh of its own, a slice of the mesh that is activated.
    procs = this_host().spawn_procs({"pp": 2})
    with procs.activate() as mesh:
        meshes = [mesh.slice(pp=i) for i in range(2)]

    stages: list[nn.Module] = []
    for stage_mesh, part, start in zip(meshes, parts(), starts, strict=True):
        # Tensors made here have their data on that mesh, and nothing in this process.
        with stage_mesh.activate():
            for name, numbers in start.items():
                path, _, last = name.rpartition(".")
                setattr(part.get_submodule(path), last, nn.Parameter(torch.tensor(numbers)))
        stages.append(part)
    optimizers = [torch.optim.Adam(stage.parameters(), lr=0.05) for stage in stages]

    pipeline = PipelineParallelism(
        meshes,
        stages,
        compute_stream=monarch.get_active_stream(),
        p2p_stream=monarch.Stream("p2p"),
        schedule=options.schedule,
        batch_size=BATCH,
        microbatch_size=4,
        loss_fn=nn.functional.mse_loss,
    )

    model = nn.Sequential(*local)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    largest = 0.0
    for step in range(STEPS):
        x, y = data(step)
        with meshes[0].activate():
            mesh_x = torch.tensor(x)
        with meshes[1].activate():
            mesh_y = torch.tensor(y)
        losses = pipeline.run(mesh_x, mesh_y)
        for stage_mesh, stage_optimizer in zip(meshes, optimizers, strict=True):
            with stage_mesh.activate():
                stage_optimizer.step()
                stage_optimizer.zero_grad()
        # Nothing has waited so far: commands were sent. This waits for the workers.
        with meshes[1].activate():
            found = monarch.inspect(torch.stack(losses).mean()).item()

        loss = nn.functional.mse_loss(model(torch.tensor(x)), torch.tensor(y))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        largest = max(largest, abs(found - loss.item()))
        if step % 20 == 0:
            print(f"step {step:2}: loss {found:.4f} in two stages, {loss.item():.4f} in one")
    assert largest < 1e-5, f"the losses differ by {largest}"
    print(f"{options.schedule}: both models learn the same, to within {largest:.0e}")


if __name__ == "__main__":
    main()
