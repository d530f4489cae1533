"""Faults that the kernel makes: memory that is full, processes that are stopped; and programs that do without their streams."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from eventually import eventually
from memory_cgroup import Cgroup, memory_cgroup
from several_hosts import several_hosts

from monarch.spmd import RestartPolicy, SPMDFailure, SPMDRun, run
from monarch.spmd.rank import _descendants

Program = Callable[..., str]
Start = Callable[..., SPMDRun]


@pytest.fixture
def cgroup() -> Iterator[Cgroup]:
    with memory_cgroup(256) as made:
        yield made


def test_rank_out_of_memory_follows_the_policy(cgroup: Cgroup, program: Program, folder: Path) -> None:
    script = program(
        """
        import os, signal
        open("started", "a").write(os.environ["RANK"])
        if os.environ["RANK"] == "1":
            data = [b"x" * (16 << 20) for _ in range(64)]
        signal.pause()
        """
    )
    with several_hosts(1) as hosts:
        # The process that starts procs already runs.
        worker = hosts.workers[0].pid
        for pid in (worker, *_descendants(worker)):
            cgroup.take(pid)
        policy = RestartPolicy(max_restarts=3, on={"oom": "stop"})
        with pytest.raises(SPMDFailure, match=r"rank 1 \(.*\) was killed by SIGKILL, its memory cgroup was full") as raised:
            run(hosts.mesh, ["torchrun", "--nproc-per-node=2", script], workdir=str(folder), policy=policy).result.get()
    assert raised.value.failures[0].kind == "oom" and sorted((folder / "started").read_text()) == ["0", "1"]


def test_state_that_is_too_large_for_its_host(cgroup: Cgroup, program: Program, folder: Path) -> None:
    script = program(
        """
        from monarch.spmd import Snapshots, SPMDError
        snapshots = Snapshots()
        snapshots.save(1, {"data": b"x" * 1_000_000}).get()
        try:
            snapshots.save(2, {"data": b"x" * 120_000_000})
        except SPMDError as error:
            print(error.code, error, file=open("found", "w"))
        snapshots.save(3, {"data": b"x" * 1_000_000}).get()
        """
    )
    with several_hosts(1) as hosts:
        worker = hosts.workers[0].pid
        for pid in (worker, *_descendants(worker)):
            cgroup.take(pid)
        run(hosts.mesh, [script], workdir=str(folder)).result.get()
    found = (folder / "found").read_text()
    assert re.match(r"snapshot_failed the snapshot of step 2 is too large for the memory of this host: 120,\d+,\d+ bytes, and ", found)


def test_stopped_rank_is_a_hang(program: Program, start: Start, folder: Path) -> None:
    script = program(
        """
        import os, signal, time
        open(f"started.{os.environ['RANK']}.{os.environ['TORCHELASTIC_RESTART_COUNT']}", "w").close()
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os.kill(os.getpid(), signal.SIGSTOP)
        """
    )
    policy = RestartPolicy(max_restarts=1, backoff=(0.0, 0.0), hang_timeout=3.0)
    assert start("--nproc-per-node=2", script, policy=policy).result.get().attempts == 2
    assert len(list(folder.glob("started.?.?"))) == 4


def test_program_that_closes_its_output(program: Program, start: Start, folder: Path) -> None:
    script = program(
        """
        import os, time
        print("last", flush=True)
        os.close(1)
        os.close(2)
        open("done." + os.environ["RANK"], "w").close()
        # The failure of one rank ends the other.
        while not os.path.exists("done.0"):  # polls: programs of tests have no other way to meet
            time.sleep(0.01)  # sleeps: between two looks
        os._exit(0 if os.environ["RANK"] == "0" else 3)
        """
    )
    with pytest.raises(SPMDFailure, match="rank 1 .* exited with code 3"):
        start("--nproc-per-node=2", script).result.get()
    assert len(list(folder.glob("done.?"))) == 2


def test_forks_of_a_program_are_no_ranks(program: Program, start: Start, folder: Path) -> None:
    """A child that fails is the program's business, and one that is left is ended."""
    script = program(
        """
        import os, signal
        child = os.fork()
        if child == 0:
            raise ValueError("of the child")
        os.waitpid(child, 0)
        left = os.fork()
        if left == 0:
            signal.pause()
        with open("left", "w") as file:
            file.write(str(left))
        """
    )
    assert start(script).result.get().attempts == 1
    pid = int((folder / "left").read_text())
    eventually("its end", lambda: not os.path.exists(f"/proc/{pid}"))
