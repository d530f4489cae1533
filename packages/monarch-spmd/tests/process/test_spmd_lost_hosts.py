"""Runs on several hosts, some of which are lost."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from eventually import eventually
from several_hosts import Hosts, several_hosts

from monarch.extension.mesh import HealedHosts, set_healer
from monarch.spmd import LaunchArgumentError, RestartPolicy, SPMDError, SPMDFailure, run

Program = Callable[..., str]
# The first attempt waits until the test disturbs it, the next ones end.
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
    assert re.match(r"rank [23] \(hosts=1, gpus=[01], .*\) lost its host: agent killed\n", str(failure))


def test_lost_host_without_a_job_ends_the_run(hosts: Hosts, program: Program, folder: Path) -> None:
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


# The first two attempts wait.
WAITS_TWICE = WAITS.replace('count == "0"', 'count in ("0", "1")')
SHRINKS = RestartPolicy(max_restarts=3, backoff=(0.0, 0.0), on={"host_lost": "shrink"})


class Job:
    """What heals in the tests: a list of answers, which may be errors."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.limits: list[float] = []

    def heal(self, seconds: float) -> HealedHosts:
        self.limits.append(seconds)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        found = answer()
        return found if isinstance(found, HealedHosts) else HealedHosts(found)


def healed_run(hosts: Hosts, script: str, folder: Path, job: Any, *options: str, policy: RestartPolicy = SHRINKS) -> Any:
    command = ["torchrun", "--nproc-per-node=2", *options, script]
    set_healer(hosts.mesh, job.heal)
    running = run(hosts.mesh, command, policy=policy, workdir=str(folder))
    eventually("all ranks", lambda: len(found(folder, 0)) == 6)
    return running


def kill_a_rank(folder: Path, attempt: int, count: int) -> None:
    eventually("the next attempt", lambda: len(found(folder, attempt)) == count)
    os.kill(int(found(folder, attempt)[0][0]), signal.SIGKILL)


def test_run_grows_back_at_the_next_restart(hosts: Hosts, program: Program, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    job = Job(lambda: hosts.replaced(1))
    running = healed_run(hosts, program(WAITS_TWICE), folder, job)
    hosts.kill(1)
    kill_a_rank(folder, 1, 4)
    result = running.result.get()
    assert (result.attempts, result.world_size, len(job.limits)) == (3, 6, 1)
    # The run could continue without the host.
    assert job.limits[0] < 60
    assert [found(folder, 2)[rank][1] for rank in range(6)] == ["6"] * 6
    assert "monarch: all 3 hosts are there" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("answer", "text"), [(1, "hosts; host 1 is lost, goes on with 2 hosts"), (OSError("no\nhint"), "hosts: OSError: no; host 1")]
)
def test_hosts_that_are_still_lost(
    hosts: Hosts, program: Program, folder: Path, capfd: pytest.CaptureFixture[str], answer: Any, text: str
) -> None:
    job = Job(answer if isinstance(answer, Exception) else lambda: HealedHosts(hosts.mesh, frozenset({answer})))
    running = healed_run(hosts, program(WAITS_TWICE), folder, job)
    hosts.kill(1)
    kill_a_rank(folder, 1, 4)
    result = running.result.get()
    assert (result.attempts, result.world_size) == (3, 4)
    assert f"could not replace lost {text}" in capfd.readouterr().err


def test_failure_after_a_shrink_is_no_loss(hosts: Hosts, program: Program, folder: Path) -> None:
    policy = RestartPolicy(max_restarts=3, backoff=(0.0, 0.0), on={"host_lost": "shrink", "signal": "stop"})
    running = started(hosts, program(WAITS_TWICE), folder, policy=policy)
    hosts.kill(2)
    kill_a_rank(folder, 1, 4)
    with pytest.raises(SPMDFailure, match="was killed by SIGKILL") as raised:
        running.result.get()
    assert raised.value.attempt == 1


@pytest.mark.parametrize(
    ("answer", "text"), [(2, "lost hosts$"), (ValueError("the queue is closed\nhint"), "lost hosts: ValueError: the queue is closed$")]
)
def test_heal_that_fails_does_not_hide_the_failure(hosts: Hosts, program: Program, folder: Path, answer: Any, text: str) -> None:
    job = Job(answer if isinstance(answer, Exception) else lambda: HealedHosts(hosts.mesh, frozenset({answer})))
    running = healed_run(hosts, program(WAITS), folder, job, policy=RestartPolicy(max_restarts=1, backoff=(0.0, 0.0)))
    hosts.kill(2)
    with pytest.raises(SPMDFailure, match=f"(?m)could not replace {text}") as raised:
        running.result.get()
    assert raised.value.failures[0].kind == "host_lost" and raised.value.rank in (4, 5)
    assert raised.value.record is not None


def test_run_takes_what_was_healed(hosts: Hosts, program: Program, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    job = Job(lambda: HealedHosts(hosts.replaced(1), frozenset({2})))
    policy = RestartPolicy(max_restarts=3, backoff=(0.0, 0.0), min_hosts=1)
    running = healed_run(hosts, program(WAITS), folder, job, policy=policy)
    hosts.kill(1)
    hosts.kill(2)
    assert running.result.get().world_size == 4
    assert "could not replace lost hosts; host 2 is lost, goes on with 2 hosts" in capfd.readouterr().err


def test_healed_run_keeps_its_number_of_hosts(hosts: Hosts, program: Program, folder: Path) -> None:
    script = program(WAITS)
    job = Job(lambda: HealedHosts(hosts.replaced(1), frozenset({2})))
    set_healer(hosts.mesh, job.heal)
    policy = RestartPolicy(max_restarts=2, backoff=(0.0, 0.0))
    # The third host is lost before it could replace the second one.
    hosts.mesh.initialized.get()
    hosts.kill(2)
    running = run(hosts.mesh, ["torchrun", "--nnodes=2", script], policy=policy, workdir=str(folder))
    eventually("all ranks", lambda: len(found(folder, 0)) == 2)
    hosts.kill(1)
    assert running.result.get().world_size == 2 and len(job.limits) == 1


# Writes its ancestor processes, among which is the worker of its host; the first attempt waits.
ANCESTORS = """
import os, signal
count, rank, pids = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"], [os.getpid()]
while pids[-1] > 1:
    with open(f"/proc/{pids[-1]}/stat") as file:
        pids.append(int(file.read().rpartition(")")[2].split()[1]))
with open(f"draft{count}.{rank}", "w") as file:
    file.write(" ".join(map(str, pids)))
os.rename(f"draft{count}.{rank}", f"{count}.{rank}")
if count == "0":
    signal.pause()
"""


def numbers(hosts: Hosts, folder: Path, attempt: int) -> list[int]:
    """The hosts of the ranks of an attempt."""
    pids = [str(worker.pid) for worker in hosts.workers]
    return [next(pids.index(pid) for pid in above if pid in pids) for _, above in sorted(found(folder, attempt).items())]


@pytest.mark.parametrize("lost", [0, 1])
@pytest.mark.parametrize("policy", [RestartPolicy(max_restarts=1, backoff=(0.0, 0.0)), SHRINKS], ids=["heal", "shrink"])
def test_spare_host_replaces_a_lost_one(
    hosts: Hosts, program: Program, folder: Path, capfd: pytest.CaptureFixture[str], policy: RestartPolicy, lost: int
) -> None:
    running = run(hosts.mesh, ["torchrun", "--nnodes=2", program(ANCESTORS)], policy=policy, workdir=str(folder))
    eventually("all ranks", lambda: len(found(folder, 0)) == 2)
    assert numbers(hosts, folder, 0) == [0, 1]
    hosts.kill(lost)
    result = running.result.get()
    assert (result.attempts, result.world_size) == (2, 2)
    assert numbers(hosts, folder, 1) == [2 if one == lost else one for one in range(2)]
    assert "restarted; spare host 2 is used" in capfd.readouterr().err


def test_stop_of_a_run_that_is_being_healed(hosts: Hosts, program: Program, folder: Path) -> None:
    asked, over = threading.Event(), threading.Event()

    class Slow:
        def heal(self, seconds: float) -> HealedHosts:
            asked.set()
            over.wait()
            return HealedHosts(hosts.mesh)

    running = healed_run(hosts, program(WAITS), folder, Slow(), policy=RestartPolicy(max_restarts=1, backoff=(0.0, 0.0)))
    hosts.kill(0)
    assert asked.wait(20)
    running.stop()
    with pytest.raises(SPMDError, match="the run was stopped"):
        running.result.get()
    over.set()
