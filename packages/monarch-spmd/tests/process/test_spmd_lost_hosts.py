"""Runs on several hosts, some of which are lost."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from eventually import eventually
from several_hosts import Hosts, several_hosts

from monarch.spmd import LaunchArgumentError, RestartPolicy, SPMDFailure, run

Program = Callable[..., str]
# The first attempt waits to be disturbed, the next ones end.
WAITS = """
import os, signal, sys
count, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]
names = ("WORLD_SIZE", "GROUP_RANK", "LOCAL_RANK", "MASTER_PORT")
with open(f"draft{count}.{rank}", "w") as file:
    file.write(" ".join([str(os.getpid()), *(os.environ[name] for name in names)]))
os.rename(f"draft{count}.{rank}", f"{count}.{rank}")
if count == "0":
    signal.pause()
"""


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    with several_hosts(3) as made:
        yield made


def found(folder: Path, attempt: int) -> dict[int, list[str]]:
    return {int(path.name.split(".")[1]): path.read_text().split() for path in folder.glob(f"{attempt}.*")}


def started(hosts: Hosts, script: str, folder: Path, *options: str, **arguments: Any) -> Any:
    running = run(hosts.mesh, ["torchrun", "--nproc-per-node=2", *options, script], workdir=str(folder), **arguments)
    eventually("all ranks", lambda: len(found(folder, 0)) == 6)
    return running


def test_ranks_on_several_hosts(hosts: Hosts, program: Program, folder: Path) -> None:
    script = program(WAITS.replace('if count == "0":', "if False:"))
    result = run(hosts.mesh, ["torchrun", "--nproc-per-node=2", script], workdir=str(folder)).result.get()
    assert result.world_size == 6
    places = found(folder, 0)
    assert [places[rank][1:4] for rank in range(6)] == [["6", str(rank // 2), str(rank % 2)] for rank in range(6)]
    assert len({one[4] for one in places.values()}) == 1


def test_first_hosts_of_the_mesh(hosts: Hosts, program: Program, folder: Path) -> None:
    script = program(WAITS.replace('if count == "0":', "if False:"))
    assert run(hosts.mesh, ["torchrun", "--nnodes=2", script], workdir=str(folder)).result.get().world_size == 2
    with pytest.raises(LaunchArgumentError, match="--nnodes=4: the mesh has 3 hosts"):
        run(hosts.mesh, ["torchrun", "--nnodes=4", script])


@pytest.mark.parametrize("lost", [1, 2])
def test_run_goes_on_with_fewer_hosts(hosts: Hosts, program: Program, folder: Path, lost: int) -> None:
    policy = RestartPolicy(max_restarts=1, backoff=(0.0, 0.0), min_hosts=2)
    running = started(hosts, program(WAITS), folder, policy=policy)
    hosts.kill(lost)
    result = running.result.get()
    assert (result.attempts, result.world_size) == (2, 4)
    places = found(folder, 1)
    assert [places[rank][1:4] for rank in range(4)] == [["4", str(rank // 2), str(rank % 2)] for rank in range(4)]


def test_loss_of_the_first_host(hosts: Hosts, program: Program, folder: Path) -> None:
    running = started(hosts, program(WAITS), folder, "--nnodes=1:3", policy=RestartPolicy(max_restarts=1, backoff=(0.0, 0.0)))
    hosts.kill(0)
    assert running.result.get().world_size == 4


def test_too_few_hosts_are_left(hosts: Hosts, program: Program, folder: Path) -> None:
    running = started(hosts, program(WAITS), folder, policy=RestartPolicy(max_restarts=3, backoff=(0.0, 0.0), min_hosts=3))
    hosts.kill(1)
    with pytest.raises(SPMDFailure, match="2 hosts are left, and the run needs 3") as raised:
        running.result.get()
    failure = raised.value
    assert failure.failures[0].kind == "host_lost" and {one.rank for one in failure.failures} == {2, 3}
    assert "rank 2 (hosts=1, gpus=0" in str(failure)


def test_host_that_is_lost_without_a_job_ends_the_run(hosts: Hosts, program: Program, folder: Path) -> None:
    running = started(hosts, program(WAITS), folder, policy=RestartPolicy(max_restarts=3))
    hosts.kill(2)
    with pytest.raises(SPMDFailure, match="this run knows no job that could replace them"):
        running.result.get()


def test_killed_rank_is_restarted_on_the_same_hosts(hosts: Hosts, program: Program, folder: Path) -> None:
    running = started(hosts, program(WAITS), folder, policy=RestartPolicy(max_restarts=1, backoff=(0.0, 0.0)))
    os.kill(int(found(folder, 0)[3][0]), signal.SIGKILL)
    result = running.result.get()
    assert (result.attempts, result.world_size) == (2, 6)
    assert found(folder, 0)[0][4] != found(folder, 1)[0][4]
    for pid, *_ in found(folder, 0).values():
        assert not os.path.exists(f"/proc/{pid}")
