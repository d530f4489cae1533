"""Snapshots of programs: what an attempt saves is what the next one restores."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from several_hosts import Hosts, several_hosts
from snapshot_files import FILES

from monarch.spmd import RestartPolicy, SPMDFailure, SPMDRun, run

Program = Callable[..., str]
Start = Callable[..., SPMDRun]
ONCE = RestartPolicy(max_restarts=1, backoff=(0.0, 0.0))
HEAD = """
import json, os, signal
from monarch.spmd import Snapshots, SPMDError
rank, count = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])

def note(value):
    with open(f"draft.{rank}", "w") as file:
        json.dump(value, file)
    os.rename(f"draft.{rank}", f"{count}.{rank}")

def meet(name):
    # The other rank is there as well.
    for other in range(int(os.environ["WORLD_SIZE"])):
        open(f"{name}.to{other}.from{rank}", "w").close()
    import time
    for other in range(int(os.environ["WORLD_SIZE"])):
        while not os.path.exists(f"{name}.to{rank}.from{other}"):  # polls: programs of tests have no other way to meet
            time.sleep(0.01)  # sleeps: between two looks
"""


def notes(folder: Path, attempt: int) -> list[Any]:
    paths = sorted(folder.glob(f"{attempt}.?"), key=lambda path: int(path.name.split(".")[1]))
    return [json.loads(path.read_text()) for path in paths]


def test_state_of_each_rank_comes_back(start: Start, program: Program, folder: Path) -> None:
    script = program(
        HEAD
        + """
snapshots = Snapshots()
found = snapshots.restore()
note(found and [found[0], found[1]["rank"], found[1]["data"][:2].decode(), len(found[1]["data"])])
for step in range(3):
    snapshots.save(step, {"rank": rank, "data": bytearray(b"%d%d" % (step, rank)) + bytearray(1_000_000)})
snapshots.save(3, {"rank": rank, "data": bytearray(b"3%d" % rank)}).get()
meet(f"saved{count}")
if count == 0 and rank == 1:
    raise ValueError("bad")
if count == 0:
    signal.pause()
"""
    )
    assert start("--nproc-per-node=2", script, policy=ONCE).result.get().attempts == 2
    assert notes(folder, 0) == [None, None]
    assert notes(folder, 1) == [[3, 0, "30", 2], [3, 1, "31", 2]]


def test_all_ranks_restore_the_step_that_all_have(start: Start, program: Program, folder: Path) -> None:
    script = program(
        HEAD
        + """
snapshots = Snapshots()
found = snapshots.restore()
note(found and [found[0], found[1]["step"]])
if count == 1:
    if rank == 0:
        # A later save of one rank does not change what the other one gets.
        snapshots.save(7, {"step": 7}).get()
        open("saved", "w").close()
    raise SystemExit
for step in range(6 + rank):
    snapshots.save(step, {"step": step}).get()
meet("saved")
os.kill(os.getpid(), signal.SIGKILL)
"""
    )
    assert start("--nproc-per-node=2", script, policy=ONCE).result.get().attempts == 2
    assert notes(folder, 1) == [[5, 5], [5, 5]]


AHEAD = """
snapshots = Snapshots(replicated={first} if count == 0 else {second})
if count == 0:
    for step in range(2 + rank):
        snapshots.save(step, {{"rank": rank}}).get()
    meet("saved")
    raise ValueError("bad")
try:
    step, state = snapshots.restore()
    note([step, state["rank"]])
except SPMDError as error:
    note(str(error))
"""


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        ("False", "False", [[1, 0], [1, 1]]),
        ("True", "True", [[2, 1], [2, 1]]),
        ("True", "False", ["step 2 is held of rank 1 only, which has saved it with replicated=True; rank 0 restores without", [2, 1]]),
        ("rank == 1", "True", [[2, 1], [2, 1]]),
        ("rank == 0", "True", [[1, 0], [1, 1]]),
    ],
)
def test_rank_that_is_ahead_replaces_no_other(start: Start, program: Program, folder: Path, first: str, second: str, found: Any) -> None:
    """Rank 1 has saved one step more than rank 0, whose state is not its own unless the program promises that."""
    start("--nproc-per-node=2", program(HEAD + AHEAD.format(first=first, second=second)), policy=ONCE).result.get()
    assert notes(folder, 1) == found


def test_restored_state_is_the_ranks_own(start: Start, program: Program, folder: Path) -> None:
    """It may be changed in place, and be restored again."""
    script = program(
        HEAD
        + """
snapshots = Snapshots(keep=1)
if count == 0:
    snapshots.save(0, {"data": bytearray(100_000)}).get()
    raise ValueError("bad")
step, state = snapshots.restore()
state["data"][:3] = b"abc"
again = snapshots.restore()[1]["data"]
for step in range(5):
    snapshots.save(step, state)
snapshots.save(5, state).get()
note([bytes(state["data"][:3]).hex(), bytes(again[:3]).hex(), len(again)])
"""
    )
    start("--nproc-per-node=1", script, policy=ONCE).result.get()
    assert notes(folder, 1) == [["616263", "000000", 100_000]]


def test_memory_of_dropped_snapshots_is_used_again(start: Start, program: Program, folder: Path) -> None:
    script = program(
        HEAD
        + """
snapshots = Snapshots(keep=2)
for step in range(20):
    snapshots.save(step, {"data": bytearray(1_000_000)}).get()
    meet(f"step{step}")
files = set()
for name in os.listdir("/proc/self/fd"):
    path = f"/proc/self/fd/{name}"
    if os.path.exists(path) and "monarch-snapshot" in os.readlink(path):
        files.add(os.stat(path).st_ino)
note(len(files))
"""
    )
    start("--nproc-per-node=2", script).result.get()
    # Reports that others are complete may be a few steps behind.
    assert all(count <= 10 for count in notes(folder, 0))


def test_futures_of_programs(start: Start, program: Program, folder: Path) -> None:
    """They are awaited by any loop, and waited for with a limit."""
    script = program(
        HEAD
        + """
import asyncio
async def main():
    await asyncio.gather(*(snapshots.save(step, {}).as_asyncio() for step in range(3)))
snapshots = Snapshots()
asyncio.run(main())
snapshots.save(9, {}).get(timeout=60)
note("saved")
"""
    )
    start("--nproc-per-node=1", script).result.get()
    assert notes(folder, 0) == ["saved"]


def test_step_that_threads_save_at_once(start: Start, program: Program, folder: Path) -> None:
    script = program(
        HEAD
        + """
import threading
snapshots = Snapshots()
def save():
    for _ in range(20):
        snapshots.save(7, {"data": bytearray(100_000)}).get()
threads = [threading.Thread(target=save) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
note("all are saved")
"""
    )
    start("--nproc-per-node=1", script).result.get()
    assert notes(folder, 0) == ["all are saved"]


def test_late_rank_restores_the_same_snapshot(start: Start, program: Program, folder: Path) -> None:
    script = program(
        HEAD
        + """
snapshots = Snapshots(replicated=True)
if count == 0:
    snapshots.save(3, {"rank": rank}).get()
    meet("saved")
    raise ValueError("bad")
if rank == 1:
    meet("later")
found = [snapshots.restore()[0] for _ in range(5)]
for step in range(4, 24):
    snapshots.save(step, {"rank": rank}).get()
if rank == 0:
    meet("later")
note(found + [snapshots.restore()[0]])
"""
    )
    start("--nproc-per-node=2", script, policy=ONCE).result.get()
    assert notes(folder, 1) == [[3] * 6] * 2


def test_wrong_arguments(start: Start, program: Program, folder: Path) -> None:
    script = program(
        HEAD
        + """
found = []
def text(function, *arguments, **named):
    try:
        function(*arguments, **named)
    except Exception as error:
        found.append(f"{type(error).__name__}: {error}")
snapshots = Snapshots()
text(Snapshots, keep=0)
text(Snapshots, copies=True)
text(snapshots.save, -1, {})
text(snapshots.save, "1", {})
text(snapshots.save, 1, [])
text(snapshots.save, 1, {"a": lambda: 0, "lock": __import__("_thread").allocate_lock()})
pid = os.fork()
if pid == 0:
    text(snapshots.save, 1, {})
    note(found)
    os._exit(0)
os.waitpid(pid, 0)
"""
    )
    start("--nproc-per-node=1", script).result.get()
    assert [text.partition("\n")[0] for text in notes(folder, 0)[0]] == [
        "ValueError: keep=0: expected a number from 1 on",
        "TypeError: copies=True: expected a number, not bool",
        "ValueError: step=-1: expected a number from 0 on",
        "TypeError: step='1': expected a number, not str",
        "TypeError: state=list: expected a mapping of names to values",
        "TypeError: cannot pickle '_thread.lock' object",
        "SPMDError: these snapshots belong to the process that this one was forked from",
    ]


def test_program_that_no_run_has_started(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from monarch.spmd import Snapshots; Snapshots()"], capture_output=True, text=True, check=False, cwd=folder
    )
    assert done.returncode == 1 and "snapshots need a run: start this program with" in done.stderr


def test_nothing_is_left_of_a_run(start: Start, program: Program, folder: Path) -> None:
    script = program(
        HEAD
        + FILES
        + """
snapshots = Snapshots()
snapshots.save(0, {"data": bytearray(1_000_000)}).get()

own, keepers = files("self"), []
for name in filter(str.isdigit, os.listdir("/proc")):
    try:
        if files(name) & own:
            keepers.append(int(name))
    except OSError:
        continue
note(keepers)
"""
    )
    start("--nproc-per-node=1", script).result.get()
    [keepers] = notes(folder, 0)
    assert len(keepers) >= 2 and not any(os.path.exists(f"/proc/{pid}") for pid in keepers)


# ---- hosts that are lost


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    with several_hosts(3) as made:
        yield made


LOST = """
snapshots = Snapshots(replicated={replicated})
found = snapshots.restore()
note([os.getppid(), found and [found[0], found[1]["rank"], len(found[1]["data"])]])
if count == 0:
    for step in range(4):
        snapshots.save(step, {{"rank": rank, "data": bytearray(100_000_000 if rank == 1 else 10)}}).get()
    meet("saved")
    if rank == 1:
        os.kill(int(os.environ["VICTIM"]), signal.SIGKILL)
    signal.pause()
"""


@pytest.mark.timeout(90)
@pytest.mark.parametrize("replicated", [False, True])
def test_world_shrinks_after_the_loss_of_hosts(hosts: Hosts, program: Program, folder: Path, replicated: bool) -> None:
    """A part of a state is of no use in a smaller world; one that is the same in all ranks is."""
    script = program(HEAD + LOST.format(replicated=replicated))
    policy = RestartPolicy(max_restarts=1, backoff=(0.0, 0.0), on={"host_lost": "shrink"})
    environment = {"VICTIM": str(hosts.workers[1].pid)}
    running = run(hosts.mesh, ["torchrun", "--nproc-per-node=1", script], workdir=str(folder), policy=policy, env=environment)
    assert running.result.get().world_size == 2
    found = [one[1] for one in notes(folder, 1)]
    assert found == ([[3, 0, 10], [3, 1, 100_000_000]] if replicated else [None, None])


@pytest.mark.timeout(120)
def test_restored_arrays_stay_what_they_are(hosts: Hosts, program: Program, folder: Path) -> None:
    """After the ranks are numbered anew, copies of others go on: none is written where a process has the state of an earlier attempt."""
    script = program(
        HEAD
        + """
import numpy
snapshots = Snapshots(replicated=True)
found = snapshots.restore()
step, state = found or (0, {"data": numpy.full(200_000, 0)})
data = state["data"]
snapshots.save(step + 1, {"data": numpy.full(200_000, step + 1)}).get()
meet(f"begun{count}")
for later in range(step + 2, step + 22):
    snapshots.save(later, {"data": numpy.full(200_000, later)}).get()
    assert (data == step).all(), (step, set(data))
meet(f"saved{count}")
if count == 0 and rank == 1:
    os.kill(int(os.environ["VICTIM"]), signal.SIGKILL)
if count == 1 and rank == 1:
    raise ValueError("bad")
if count < 2:
    signal.pause()
note(step)
"""
    )
    policy = RestartPolicy(max_restarts=2, backoff=(0.0, 0.0), on={"host_lost": "shrink"})
    environment = {"VICTIM": str(hosts.workers[1].pid)}
    result = run(hosts.mesh, ["torchrun", "--nproc-per-node=1", script], workdir=str(folder), policy=policy, env=environment).result.get()
    assert (result.attempts, result.world_size) == (3, 2)
    assert notes(folder, 2) == [42, 42]


def test_failure_without_an_attempt_left_is_the_programs(start: Start, program: Program) -> None:
    script = program(HEAD + "Snapshots().save(1, {}).get()\nraise ValueError('bad')\n")
    with pytest.raises(SPMDFailure, match="ValueError: bad"):
        start("--nproc-per-node=1", script).result.get()


def test_classes_of_the_program_are_restored_as_themselves(start: Start, program: Program, folder: Path) -> None:
    script = program(
        HEAD
        + """
import dataclasses, enum

class Phase(enum.Enum):
    WARM, COLD = 1, 2

@dataclasses.dataclass
class Progress:
    phase: Phase
    total: float
    class Inner:
        pass

snapshots = Snapshots()
found = snapshots.restore()
if found is None:
    snapshots.save(1, {"progress": Progress(Phase.WARM, 1.5), "inner": Progress.Inner(), "kinds": {Phase.COLD: 3}, "class": Progress}).get()
    meet("saved")
    raise ValueError("bad")
state = found[1]
same = state["progress"] == Progress(Phase.WARM, 1.5) and state["class"] is Progress
note([same, isinstance(state["inner"], Progress.Inner), state["kinds"][Phase.COLD]])
"""
    )
    assert start("--nproc-per-node=2", script, policy=ONCE).result.get().attempts == 2
    assert notes(folder, 1) == [[True, True, 3]] * 2


def test_state_without_its_class_names_the_step(start: Start, program: Program) -> None:
    script = program(
        HEAD
        + """
if count == 0:
    class Progress:
        pass
    Snapshots().save(7, {"progress": Progress()}).get()
    raise ValueError("bad")
Snapshots().restore()
"""
    )
    with pytest.raises(SPMDFailure) as caught:
        start("--nproc-per-node=1", script, policy=ONCE).result.get()
    assert "SPMDError: the snapshot of step 7 does not unpickle: AttributeError: Can't get attribute 'Progress' on" in str(caught.value)


def test_rank_that_saves_other_steps_is_named_once(start: Start, program: Program, capfd: pytest.CaptureFixture[str]) -> None:
    script = program(
        HEAD
        + """
snapshots = Snapshots()
for step in range(40):
    snapshots.save(2 * step + rank, {}).get()
meet("saved")
"""
    )
    assert start("--nproc-per-node=2", script).result.get().attempts == 1
    lines = [line for line in capfd.readouterr().err.splitlines() if "was dropped" in line]
    assert len(lines) == 1 and lines[0].endswith("had not saved this step; an attempt begins with a step that every rank has saved"), lines
