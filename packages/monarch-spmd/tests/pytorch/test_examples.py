"""The examples with torch, each as a user starts it: what they print, and that nothing of them is left."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tools import side_venv
from tools.marked_processes import marked_processes
from tools.project import ROOT

EXAMPLES = ROOT / "examples"
VARIABLE = "MONARCH_TEST_RUN"
# Most of the time goes into imports of torch: by two ranks at once, and again in the next attempt.
pytestmark = pytest.mark.timeout(240)

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(folder: Path) -> Iterator[Start]:
    """Starts an example in an empty folder, with the packages of the environment `torch`; at the end nothing of it may be left."""
    python = side_venv.existing("torch")
    if python is None:
        pytest.skip("there is no environment with torch: python -m tools.side_venv torch")
    mark = uuid.uuid4().hex
    environment = {**os.environ, "PYTHONPATH": str(side_venv.site_packages(python)), VARIABLE: mark, "PYTHONUNBUFFERED": "1"}
    # Variables of an outer launch are not the example's.
    for name in ("OMP_NUM_THREADS", "RANK", "WORLD_SIZE"):
        environment.pop(name, None)
    started: list[subprocess.Popen[str]] = []

    def begin(*words: str) -> subprocess.Popen[str]:
        argv = [sys.executable, str(EXAMPLES / words[0]), *words[1:]]
        process = subprocess.Popen(
            argv, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None:  # the test has failed
            process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
    left = marked_processes(VARIABLE, mark)
    for pid, _ in left:
        os.kill(pid, signal.SIGKILL)
    assert not left


def printed_by(process: subprocess.Popen[str]) -> str:
    """All that an example has printed, once it has ended with 0."""
    text, _ = process.communicate()
    print(text)
    assert process.returncode == 0
    return text


def losses(text: str) -> list[float]:
    return [float(found) for found in re.findall(r"loss (\d\.\d+)", text)]


def assert_goes_on(text: str) -> list[float]:
    """From the last checkpoint, after a rank has died; the losses of the steps 1, 20, 40, 60 and 80."""
    assert "[1] dies at step 50" in text
    assert "attempt 1 of 2 ranks starts at step 40" in text
    assert "2 ranks trained 80 steps in 2 attempts" in text
    found = losses(text)
    assert len(found) == 5
    assert found[-1] < 0.7 * found[0]
    return found


def test_sharded_training_goes_on_from_a_checkpoint(start: Start) -> None:
    assert_goes_on(printed_by(start("train/main.py", "fsdp")))


def test_training_is_that_of_torchrun(start: Start, folder: Path) -> None:
    """Torchrun itself runs the program, and the losses are those of a run of Monarch, in which a rank has died."""
    by_monarch = assert_goes_on(printed_by(start("train/main.py", "ddp")))
    torchrun = folder / "torchrun.py"
    torchrun.write_text("from torch.distributed.run import main\nmain()\n")
    program = str(EXAMPLES / "train" / "train_ddp.py")
    by_torchrun = losses(printed_by(start(str(torchrun), "--standalone", "--nproc-per-node=2", program)))
    assert by_torchrun == by_monarch


def test_lightning_finds_the_ranks(start: Start) -> None:
    text = printed_by(start("lightning/main.py"))
    for rank in range(2):
        assert f"[{rank}] rank {rank} of 2 is done, by TorchElasticEnvironment" in text
    found = losses(text)
    assert len(found) == 3
    assert found[-1] < 0.9 * found[0]


def test_accelerate_finds_the_ranks(start: Start) -> None:
    text = printed_by(start("accelerate/main.py"))
    for rank in range(2):
        assert f"[{rank}] rank {rank} of 2 is done, by MULTI_CPU" in text
    found = losses(text)
    assert len(found) == 3
    assert found[-1] < 0.9 * found[0]


def test_killed_replica_group_comes_back(start: Start) -> None:
    text = printed_by(start("replica_groups/main.py"))
    assert "SIGKILL to rank 1 of group 1" in text
    # The other groups continued before it was there again, and all three after that.
    assert [groups for _, groups in re.findall(r"quorum (\d+) at step \d+: groups ([\d, ]+)", text)] == ["0, 1, 2", "0, 2", "0, 1, 2"]
    assert re.search(r"from the kill to the next step without the group: \d+ ms", text)
    found = losses(text)
    assert found[-1] < found[0]
    assert text.endswith("passed\n")


def test_replica_groups_go_on_without_a_lost_host(start: Start, folder: Path) -> None:
    addresses = [f"ipc://{folder}/host_{number}" for number in range(3)]
    argv = [sys.executable, "-c", "from monarch.extension.cli import main; main()", "worker", "--listen"]
    workers = [subprocess.Popen([*argv, address], stdout=subprocess.PIPE, text=True) for address in addresses]
    try:
        for worker in workers:
            assert worker.stdout is not None and worker.stdout.readline().startswith("listening")
        text = printed_by(start("replica_groups/main.py", "--lose-host", "--workers", *addresses))
        assert [worker.wait() for worker in workers] == [0, -signal.SIGKILL, 0]
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
    assert "SIGKILL to the host of group 1" in text
    assert [groups for _, groups in re.findall(r"quorum (\d+) at step \d+: groups ([\d, ]+)", text)] == ["0, 1, 2", "0, 2"]
    found = losses(text)
    assert found[-1] < found[0]
    assert text.endswith("passed\n")


def test_reward_rises_through_two_kills(start: Start) -> None:
    text = printed_by(start("rl/main.py"))
    rewards = [float(reward) for reward in re.findall(r"version +\d+: reward (\d\.\d+)", text)]
    assert rewards[0] < 0.4 < rewards[-1]
    assert re.findall(r"SIGKILL to rank 1 of (\w+)", text) == ["generators_1", "trainers_0"]
    assert {"generators 1", "trainers"} == set(re.findall(r"^(\w[\w ]*) replaced: ", text, re.MULTILINE))
    assert text.endswith("passed\n")


@pytest.mark.parametrize(("example", "line"), [("train/main.py", "[0] step  20:"), ("replica_groups/main.py", "SIGKILL")])
def test_ctrl_c_ends_all_of_it(start: Start, example: str, line: str) -> None:
    """What is left fails the test, in the fixture."""
    process = start(example)
    assert process.stdout is not None
    seen: list[str] = []
    while not (seen and seen[-1].startswith(line)):
        seen.append(process.stdout.readline())
        assert seen[-1], "".join(seen)
    process.send_signal(signal.SIGINT)
    text, _ = process.communicate()
    assert process.returncode == -signal.SIGINT, text
    assert text.count("KeyboardInterrupt\n") == 1
    assert "does not exist" not in text  # files of the example exist until its ranks have ended
