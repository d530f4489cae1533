"""Training with PyTorch by `run`: several hosts find what one process finds, and the rank that was at fault is named."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from monarch.actor import this_host
from monarch.spmd import SPMDFailure, run
from tools.netns.cluster import Cluster, Worker
from tools.netns.requirement import need_namespaces

# PyTorch takes seconds to import, in each of the ranks.
pytestmark = pytest.mark.timeout(180)
Program = Callable[[str], str]
# Each rank has a part of the batch; the losses go into the file of the first argument. One process alone has the whole batch.
TRAIN = """
import json, os, sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
torch.manual_seed(0)
inputs, targets = torch.randn(48, 10), torch.randn(48, 1)
model = torch.nn.Sequential(torch.nn.Linear(10, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
if world_size > 1:
    dist.init_process_group("gloo")
    model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
losses = []
for step in range(5):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(inputs[rank::world_size]), targets[rank::world_size])
    loss.backward()
    optimizer.step()
    mean = loss.detach() / world_size
    if world_size > 1:
        dist.all_reduce(mean)
    losses.append(mean.item())
if rank == 0:
    with open(sys.argv[1], "w") as file:
        json.dump({"losses": losses, "world_size": world_size}, file)
if world_size > 1:
    dist.destroy_process_group()
"""
# A client in a network namespace; its code is the same as in a process of the user.
CLIENT = """
import json, os, sys
from monarch.actor import attach_to_workers
from monarch.spmd import run
order = json.loads(sys.argv[1])
hosts = attach_to_workers(workers=order["workers"], secret=os.environ["TEST_SECRET"])
result = run(hosts, order["command"], env=order["env"], workdir=order["workdir"]).result.get()
hosts.shutdown().get()
print("ranks", result.world_size, flush=True)
"""


def losses_of_one_process(torch_python: Path, script: str, folder: Path) -> list[float]:
    subprocess.run([torch_python, script, "alone.json"], cwd=folder, check=True)
    alone = json.loads((folder / "alone.json").read_text())
    assert alone["world_size"] == 1 and len(set(alone["losses"])) == 5
    return alone["losses"]


def are_close(found: list[float], expected: list[float]) -> bool:
    return len(found) == len(expected) and all(math.isclose(one, other, rel_tol=1e-4) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("per_host", [4])
def test_ddp_on_two_hosts(
    torch_python: Path, torch_env: dict[str, str], program: Program, folder: Path, tmp_path: Path, per_host: int
) -> None:
    need_namespaces()
    script = program(TRAIN)
    expected = losses_of_one_process(torch_python, script, folder)
    client = tmp_path / "client.py"
    client.write_text(CLIENT)
    with Cluster(2, tmp_path, "") as cluster:
        cluster.workers = [Worker(host, cluster.env, cluster.secret) for host in cluster.hosts]
        order = {
            "workers": [worker.address for worker in cluster.workers],
            "command": ["torchrun", f"--nproc-per-node={per_host}", script, "together.json"],
            "env": torch_env,
            "workdir": str(folder),
        }
        done = cluster.client_host.run(*(sys.executable, str(client), json.dumps(order)), env=cluster.env, check=False, capture_output=True)
        assert done.returncode == 0 and done.stdout.splitlines()[-1] == f"ranks {2 * per_host}", done.stdout + done.stderr
    together = json.loads((folder / "together.json").read_text())
    assert together["world_size"] == 2 * per_host
    assert are_close(together["losses"], expected), (together["losses"], expected)


def test_fsdp2_on_two_ranks(torch_env: dict[str, str], program: Program, folder: Path) -> None:
    script = program(
        """
        import json, os
        import torch
        import torch.distributed as dist
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.tensor import DTensor

        dist.init_process_group("gloo")
        torch.manual_seed(0)
        mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
        model = torch.nn.Sequential(torch.nn.Linear(10, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
        fully_shard(model[0], mesh=mesh)
        fully_shard(model, mesh=mesh)
        weight = model[0].weight
        assert isinstance(weight, DTensor) and weight.to_local().shape == (8, 10), weight
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
        inputs, targets = torch.randn(32, 10), torch.randn(32, 1)
        rank = dist.get_rank()
        losses = []
        for step in range(10):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(inputs[rank::2]), targets[rank::2])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        with open(f"{rank}.json", "w") as file:
            json.dump(losses, file)
        dist.destroy_process_group()
        """
    )
    run(this_host(), ["torchrun", "--nproc-per-node=2", script], env=torch_env, workdir=str(folder)).result.get()
    for rank in (0, 1):
        losses: list[float] = json.loads((folder / f"{rank}.json").read_text())
        assert losses[-1] < losses[0] / 2, losses


# With DDP, connections stay until the process ends. A program that cleans up closes them before that, and the others may have ended first.
FAULTS = {
    "ddp": """
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
        for step in range(3):
            check(step)
            model(torch.ones(2, 4)).sum().backward()
    """,
    "tidy": """
        atexit.register(wait_for_the_other)
        try:
            for step in range(3):
                check(step)
                dist.all_reduce(torch.ones(3))
        finally:
            dist.destroy_process_group()
    """,
}


@pytest.mark.parametrize("name", FAULTS)
def test_failed_rank_is_named_instead_of_waiting_ranks(torch_env: dict[str, str], program: Program, folder: Path, name: str) -> None:
    os.mkfifo(folder / "fifo")
    script = program(
        """
        import atexit
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        is_at_fault = dist.get_rank() == 1

        def check(step):
            if step == 2 and is_at_fault:
                raise ValueError("bad batch")

        def wait_for_the_other():
            # It opens its end when it leaves as well.
            open("fifo", "r" if is_at_fault else "w").close()
        """
        + FAULTS[name]
    )
    with pytest.raises(SPMDFailure) as raised:
        run(this_host(), ["torchrun", "--nproc-per-node=2", script], env=torch_env, workdir=str(folder)).result.get()
    failure = raised.value
    assert failure.rank == 1 and "raised ValueError: bad batch" in str(failure).splitlines()[0], str(failure)
    assert failure.failures[0].kind == "exception"
