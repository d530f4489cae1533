"""Snapshots of states of PyTorch: sharded training goes on as if nothing had happened, and tensors of all kinds come back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from monarch.actor import this_host
from monarch.spmd import RestartPolicy, run

# PyTorch takes seconds to import, in each of the ranks.
pytestmark = pytest.mark.timeout(180)
Program = Callable[[str], str]
SHARDED = """
import json, os, signal
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from monarch.spmd import Snapshots

dist.init_process_group("gloo")
torch.manual_seed(0)
mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
model = torch.nn.Sequential(torch.nn.Linear(10, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
fully_shard(model, mesh=mesh)
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
inputs, targets = torch.randn(32, 10), torch.randn(32, 1)
snapshots, begin, losses = Snapshots(), 0, []
found = snapshots.restore()
if found is not None:
    begin, state = found
    assert all(isinstance(value, DTensor) for value in state["model"].values())
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    losses = state["losses"]
for step in range(begin + 1, 7):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    snapshots.save(step, {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "losses": losses}).get()
    dist.barrier()
    if step == 3 and os.environ["DIES"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
if dist.get_rank() == 0:
    with open("losses." + os.environ["DIES"], "w") as file:
        json.dump([begin, losses], file)
dist.destroy_process_group()
"""
KINDS = """
import torch
from monarch.spmd import Snapshots

torch.manual_seed(0)
base = torch.arange(12.0).reshape(3, 4)
layer = torch.nn.Linear(3, 2)
state = {
    "plain": base,
    "column": base[:, 1],
    "transposed": base.t(),
    "bfloat16": base.bfloat16(),
    "bool": base > 3,
    "scalar": torch.tensor(7),
    "empty": torch.empty(0, 5),
    "complex": torch.complex(base, base),
    "sparse": torch.eye(3).to_sparse(),
    "grad": torch.ones(2, requires_grad=True),
    "parameter": torch.nn.Parameter(torch.ones(3)),
    "module": layer,
    "dtype": torch.float16,
    "generator": torch.get_rng_state(),
}
snapshots = Snapshots()
found = snapshots.restore()
if found is None:
    snapshots.save(1, state).get()
    raise SystemExit(1)
step, back = found
assert step == 1 and list(back) == list(state)
for name in state:
    if isinstance(state[name], torch.Tensor):
        one, other = (value.to_dense() if value.is_sparse else value for value in (back[name], state[name]))
        assert one.dtype == other.dtype and torch.equal(one, other) and back[name].requires_grad == state[name].requires_grad, name
assert type(back["parameter"]) is torch.nn.Parameter and back["dtype"] is torch.float16
back["plain"] += 1
assert back["module"](torch.ones(3)).shape == (2,) and torch.equal(snapshots.restore()[1]["plain"], base)
print("all are back")
"""


def test_sharded_training_is_that_without_a_failure(torch_env: dict[str, str], program: Program, folder: Path) -> None:
    script = program(SHARDED)
    policy = RestartPolicy(max_restarts=1, backoff=(0.0, 0.0))
    for dies in ("0", "1"):
        run(
            this_host(), ["torchrun", "--nproc-per-node=2", script], policy=policy, workdir=str(folder), env={**torch_env, "DIES": dies}
        ).result.get()
    begin, losses = json.loads((folder / "losses.1").read_text())
    assert begin == 3 and losses == json.loads((folder / "losses.0").read_text())[1] and len(losses) == 6


def test_tensors_of_all_kinds(torch_env: dict[str, str], program: Program, folder: Path) -> None:
    policy = RestartPolicy(max_restarts=1, backoff=(0.0, 0.0))
    assert run(this_host(), [program(KINDS)], policy=policy, workdir=str(folder), env=torch_env).result.get().attempts == 2
