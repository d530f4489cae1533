"""Programs with a rank whose memory does not fit, and one whose memory grows. Swap and cgroups need root."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from pathlib import Path

from bench.faults.actors import work
from bench.faults.machine import cgroup
from bench.faults.program import Fault, forever, rest
from monarch.actor import Actor, current_rank, endpoint, this_host

_MIB = 1 << 20
_GROUPS = "/sys/fs/cgroup/memory"


class Trainer(Actor):
    """Has a table in memory, of which each step uses all pages, and keeps the results of its steps."""

    def __init__(self) -> None:
        self.kept: list[bytearray] = []

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def use_table(self, rank: int, size: int) -> None:
        if current_rank().rank != rank:
            return
        table = bytearray(os.urandom(_MIB)) * (size // _MIB)
        while True:
            for at in range(0, size, 4096):
                table[at] ^= 1

    @endpoint
    def step(self, rank: int, size: int) -> None:
        if current_rank().rank == rank:
            self.kept.append(bytearray(os.urandom(4096)) * (size // 4096))
        work(0.1)


def swapping() -> None:
    """The cgroup of one rank has room for a third of its table: the rest is in swap."""
    folder = Path(tempfile.mkdtemp(prefix="faults-", dir="/var/tmp"))
    swap = folder / "swap"
    swap.touch(0o600)
    subprocess.run(["fallocate", "-l", str(256 * _MIB), swap], check=True)
    subprocess.run(["mkswap", swap], check=True, capture_output=True)
    # This one ends the use of the file once the program has ended, by SIGKILL too.
    end = 'read -r _; until swapoff "$0"; do sleep 1; done; rm -r "${0%/swap}"'
    off = subprocess.Popen(["sh", "-c", end, swap], stdin=subprocess.PIPE, start_new_session=True)
    assert off.poll() is None
    subprocess.run(["swapon", swap], check=True)
    trainers = this_host().spawn_procs({"gpus": 3}, name="workers").spawn("trainer", Trainer)
    pid = trainers.slice(gpus=1).pid.call_one().get()
    group = cgroup(_GROUPS)
    (group / "memory.limit_in_bytes").write_text(str(96 * _MIB))
    (group / "cgroup.procs").write_text(str(pid))
    call = trainers.use_table.call(1, 160 * _MIB)
    while _swapped(pid) < 32 * _MIB:
        time.sleep(0.05)  # sleeps: until a part of the table is in swap
    rest(call)


def _swapped(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmSwap:"))


def memory_leak() -> None:
    """One rank keeps the results of all its steps."""
    trainers = this_host().spawn_procs({"gpus": 4}, name="workers").spawn("trainer", Trainer)
    trainers.step.call(3, 400 * _MIB).get()
    forever(lambda: trainers.step.call(3, _MIB // 2).get())


FAULTS = (
    Fault(
        "swapping",
        swapping,
        r"trainer rank 1 .*waits for memory in swap: \d+ MiB are there, and it reads [\d,]+ pages/s",
        6.0,
        _GROUPS,
    ),
    Fault("memory_leak", memory_leak, r"the memory of trainer rank 3 .*grows: [\d,]+ MiB and [\d.,]+ MiB/s more, other ranks have \d+ MiB"),
)
