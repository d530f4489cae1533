"""The proc that keeps snapshots is killed, as the system does where memory lacks: saves go on, copies of other hosts are used."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from several_hosts import several_hosts
from snapshot_files import FILES

from monarch.spmd import RestartPolicy, SPMDRun, run

ONCE = RestartPolicy(max_restarts=1, backoff=(0.0, 0.0))
HEAD = (
    FILES
    + """
import json, os, signal, time
from monarch.spmd import Snapshots
rank, count = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])

def parent(pid):
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])

def keeper():
    # What has a file of this program open, and is neither the program nor a process above it.
    above, pid = set(), os.getpid()
    while pid > 1:
        above.add(pid)
        pid = parent(pid)
    own = files(os.getpid())
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if int(name) not in above and files(name) & own:
                found.append(int(name))
        except OSError:  # it has ended meanwhile
            continue
    [pid] = found
    return pid

def kill_keeper():
    pid = os.pidfd_open(keeper())
    signal.pidfd_send_signal(pid, signal.SIGKILL)
    import select
    select.select([pid], [], [])

def note(value):
    with open(f"{count}.{rank}", "w") as file:
        json.dump(value, file)

snapshots = Snapshots(copies=max(1, int(os.environ["WORLD_SIZE"]) - 1))
"""
)
RESTORED = HEAD + "found = snapshots.restore()\n"


def notes(folder: Path, attempt: int) -> list[Any]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob(f"{attempt}.?"))]


def test_saves_continue_after_the_end_of_a_keeper(start: Callable[..., SPMDRun], program: Callable[[str], str], folder: Path) -> None:
    script = program(
        RESTORED
        + """
note(found and [found[0], len(found[1]["data"])])
if count == 0:
    snapshots.save(1, {"data": bytearray(100_000)}).get()
    kill_keeper()
    snapshots.save(2, {"data": bytearray(200_000)}).get()
    raise ValueError("bad")
"""
    )
    assert start("--nproc-per-node=1", script, policy=ONCE).result.get().attempts == 2
    assert notes(folder, 1) == [[2, 200_000]]


def test_attempt_without_any_keeper_starts_over(start: Callable[..., SPMDRun], program: Callable[[str], str], folder: Path) -> None:
    script = program(
        RESTORED
        + """
snapshots.save(1, {}).get()
note(found)
if count == 0:
    kill_keeper()
    raise ValueError("bad")
"""
    )
    assert start("--nproc-per-node=1", script, policy=ONCE).result.get().attempts == 2
    assert notes(folder, 1) == [None]


@pytest.mark.timeout(120)
def test_copy_on_another_host_replaces_a_keeper(program: Callable[[str], str], folder: Path) -> None:
    script = program(
        RESTORED
        + """
note(found and [found[0], found[1]["rank"]])
if count == 0:
    snapshots.save(1, {"rank": rank, "data": bytearray(100_000)}).get()
    open(f"saved.{rank}", "w").close()
    while not os.path.exists(f"saved.{1 - rank}"):  # polls: programs of tests have no other way to meet
        time.sleep(0.01)  # sleeps: between two looks
    if rank == 1:
        kill_keeper()
        raise ValueError("bad")
    signal.pause()
snapshots.save(2, {"rank": rank}).get()
"""
    )
    with several_hosts(2) as hosts:
        words = ["torchrun", "--nproc-per-node=1", script]
        assert run(hosts.mesh, words, workdir=str(folder), policy=ONCE).result.get().attempts == 2
    assert notes(folder, 1) == [[1, 0], [1, 1]]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("host_count", [2, 3])
def test_altered_copy_is_not_restored(
    program: Callable[[str], str], folder: Path, capfd: pytest.CaptureFixture[str], host_count: int
) -> None:
    """The first of the hosts with a copy alters it, and the keeper of the rank's own host has ended."""
    script = program(
        HEAD
        + """
def alter_copies():
    own = files(os.getpid())
    pid = keeper()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        path = f"/proc/{pid}/fd/{fd}"
        if "monarch-snapshot" in os.readlink(path) and os.stat(path).st_ino not in own:
            with open(path, "r+b") as file:
                file.seek(-1, 2)
                while not file.peek(1)[:1].strip(b"\\0"):
                    file.seek(-2, 1)
                file.write(b"X")

last = int(os.environ["WORLD_SIZE"]) - 1
if count == 0:
    assert snapshots.restore() is None
    snapshots.save(1, {"rank": rank, "data": b"d" * 100_000}).get()
    open(f"saved.{rank}", "w").close()
    while not all(os.path.exists(f"saved.{other}") for other in range(last + 1)):  # polls: programs of tests have no other way to meet
        time.sleep(0.01)  # sleeps: between two looks
    if rank == 0:
        alter_copies()
        open("altered", "w").close()
    if rank == last:
        while not os.path.exists("altered"):  # polls: as above
            time.sleep(0.01)  # sleeps: between two looks
        kill_keeper()
        raise ValueError("bad")
    signal.pause()
try:
    step, state = snapshots.restore()
    note([step, state["rank"], state["data"].count(b"d")])
except RuntimeError as error:
    note([error.code, str(error)])
"""
    )
    with several_hosts(host_count) as hosts:
        words = ["torchrun", "--nproc-per-node=1", script]
        assert run(hosts.mesh, words, workdir=str(folder), policy=ONCE).result.get().attempts == 2
    *others, of_last = notes(folder, 1)
    assert others == [[1, rank, 100_000] for rank in range(host_count - 1)]
    if host_count == 2:
        assert of_last == ["snapshot_altered", "step 1 of rank 1 cannot be had: the copy on host 0 has other bytes than were saved"]
    else:
        assert of_last == [1, 2, 100_000]
    assert f"host 0 has altered its copy of step 1 of rank {host_count - 1}, which was not restored" in capfd.readouterr().err
