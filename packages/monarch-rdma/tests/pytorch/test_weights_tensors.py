"""Weights that are tensors of PyTorch, in programs with the PyTorch of its own environment."""

from __future__ import annotations

import subprocess
import sys

import pytest

from monarch.actor import this_host
from monarch.spmd import run
from tools import with_torch

# The local tensors are those that the placements themselves cut.
DTENSORS = """
import random

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore

from monarch.rdma.weights.local_tensor import local_tensors

chance = random.Random(5)
checked = 0
for sizes in ((6,), (2, 3), (2, 2, 2)):
    count = int(np.prod(sizes))
    for rank in range(count):
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=count)
        mesh = init_device_mesh("cpu", sizes)
        for _ in range(10):
            shape = [chance.randint(1, 9) for _ in range(chance.randint(1, 3))]
            whole = torch.arange(int(np.prod(shape)), dtype=torch.float32).reshape(shape)
            placements, local = [], whole
            for parts, mine in zip(sizes, mesh.get_coordinate()):
                dim = chance.randrange(len(shape))
                placement = chance.choice([Replicate(), Shard(dim), Shard(dim), _StridedShard(dim, split_factor=chance.choice([2, 3]))])
                placements.append(placement)
                if not placement.is_replicate():
                    local = placement._split_tensor(local, parts, with_padding=False, contiguous=True)[0][mine]
            tensor = DTensor.from_local(local, mesh, placements, run_check=False, shape=whole.shape, stride=whole.stride())
            found = local_tensors({"w": tensor})
            seen = torch.full_like(local, -1)
            for low, at, size in zip(found.table.low.tolist(), found.local.tolist(), found.table.shape.tolist()):
                box = tuple(slice(a, a + n) for a, n in zip(low, size))
                seen[tuple(slice(a, a + n) for a, n in zip(at, size))] = whole[box]
            assert torch.equal(seen, local) and found.table.whole.tolist() == [shape], (placements, shape)
            checked += 1
        dist.destroy_process_group()
print(checked)
"""
TENSORS = """
import torch

from monarch.actor import Actor, current_rank, endpoint, this_host
from monarch.rdma import RDMAUnsupportedError
from monarch.rdma.weights import Box, Weights


class Trainer(Actor):
    @endpoint
    def publish(self, name, buffers):
        self.rank = current_rank()["gpus"]
        self.rows = torch.nn.Parameter(torch.arange(32.0).reshape(8, 4).to(torch.bfloat16)[4 * self.rank :][:4].clone())
        self.scalar = torch.tensor(7, dtype=torch.int64)
        state = {"w": (self.rows, Box((4 * self.rank, 0), (4, 4), (8, 4))), "steps": self.scalar}
        self.source = Weights.publish(name, state, buffers=buffers)
    @endpoint
    def step(self):
        with self.source.update(), torch.no_grad():
            self.rows.add_(1)
            self.scalar.add_(1)
    @endpoint
    def replace(self):
        with self.source.update():
            self.rows.data = torch.zeros(4, 4, dtype=torch.bfloat16)


class Generator(Actor):
    @endpoint
    def take(self, trainers, name, dtype, buffers):
        self.module = torch.nn.Linear(8, 4, dtype=dtype)
        self.steps = torch.zeros((), dtype=torch.int64)
        # A transposed view of a parameter.
        state = {"w": self.module.weight.t(), "steps": self.steps}
        self.target = Weights.attach(name, of=trainers, into=state, cast=dtype != torch.bfloat16, buffers=buffers)
    @endpoint
    def pull(self):
        return self.target.pull().get(), self.module.weight.t().float().tolist(), int(self.steps)


def rows(more):
    return (torch.arange(32.0).reshape(8, 4) + more).tolist()


# Each process imports PyTorch once, which takes seconds.
procs = this_host().spawn_procs({"gpus": 2})
trainers, generator = procs.spawn("trainers", Trainer), procs.slice(gpus=0).spawn("generator", Generator)
for published, taken, dtype in ((2, 2, torch.bfloat16), (1, 1, torch.bfloat16), (2, 2, torch.float32)):
    name = f"{published} {taken} {dtype}"
    trainers.publish.call(name, published).get()
    generator.take.call_one(trainers, name, dtype, taken).get()
    assert generator.pull.call_one().get() == (0, rows(0), 7)
    trainers.step.call().get()
    assert generator.pull.call_one().get() == (1, rows(1), 8)
    if published == 2:
        trainers.replace.call().get()
        assert generator.pull.call_one().get() == (2, torch.zeros(8, 4).tolist(), 8)
    else:
        try:
            trainers.replace.call().get()
        except Exception as e:
            assert "the memory of a tensor is another one than at publish" in str(e)
        else:
            raise AssertionError
for odd in (torch.empty(2, device="meta"), torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])):
    try:
        Weights.publish("odd", {"odd": odd})
    except (RDMAUnsupportedError, ValueError) as e:
        assert str(e).startswith("tensor 'odd': ")
    else:
        raise AssertionError
print("done")
"""

# Each rank of a run has rows of a module that is sharded, and takes columns.
RANKS = """
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor

from monarch.rdma.weights import Weights
from monarch.spmd import run_mesh

dist.init_process_group("gloo")
rank, mesh = dist.get_rank(), init_device_mesh("cpu", (2,))
torch.manual_seed(0)
model = torch.nn.Linear(6, 5)
whole, bias = model.weight.detach().clone(), model.bias.detach().clone()
fully_shard(model, mesh=mesh)
scale = torch.full((3,), 8, dtype=torch.bfloat16)
source = Weights.publish("policy", {**model.state_dict(), "scale": scale})
columns = distribute_tensor(torch.zeros(5, 6), mesh, [Shard(1)])
taken = {"weight": columns, "bias": torch.zeros(5), "scale": torch.zeros(3, dtype=torch.bfloat16)}
target = Weights.attach("policy", of=run_mesh(), into=taken)
for step in range(3):
    assert target.wait(step).get() == target.pull().get() == step
    assert torch.allclose(columns.to_local(), whole.chunk(2, dim=1)[rank] + step)
    assert torch.allclose(taken["bias"], bias + step) and (taken["scale"] == 8 + step).all()
    dist.barrier()
    with source.update():
        for parameter in model.parameters():
            parameter.data.to_local().add_(1)
        scale.add_(1)
dist.destroy_process_group()
with open(f"{sys.argv[1]}/{rank}", "w") as file:
    file.write("done")
"""


@pytest.mark.parametrize("program", [DTENSORS, TENSORS], ids=["dtensors", "tensors"])
def test_weights_are_tensors_of_pytorch(program, tmp_path):
    variables = with_torch.variables()
    if variables is None:
        pytest.skip("python -m tools.side_venv torch")
    path = tmp_path / "program.py"
    path.write_text(program)
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, env=variables, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.split()[-1] in ("200", "done")


@pytest.mark.timeout(180)  # most of it are two imports of PyTorch
def test_tensors_of_pytorch_in_programs(tmp_path):
    variables = with_torch.variables()
    if variables is None:
        pytest.skip("python -m tools.side_venv torch")
    program = tmp_path / "program.py"
    program.write_text(RANKS)
    run(this_host(), ["torchrun", "--nproc-per-node=2", str(program), str(tmp_path)], env=variables).result.get()
    assert [(tmp_path / str(rank)).read_text() for rank in range(2)] == ["done"] * 2
