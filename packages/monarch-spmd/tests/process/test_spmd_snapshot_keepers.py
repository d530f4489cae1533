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

snapshots = Snapshots()
found = snapshots.restore()
"""
)


def notes(folder: Path, attempt: int) -> list[Any]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob(f"{attempt}.?"))]


def test_saves_continue_after_the_end_of_a_keeper(start: Callable[..., SPMDRun], program: Callable[[str], str], folder: Path) -> None:
    script = program(
        HEAD
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
        HEAD
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
        HEAD
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
