"""Programs that use up memory, threads or descriptors. Cgroups and mounts need root."""

from __future__ import annotations

import mmap
import os
import threading
import time
from pathlib import Path

import monarch.actor
from bench.faults.machine import cgroup, in_memory
from bench.faults.program import Fault, rest
from monarch.actor import Actor, SupervisionError, current_rank, endpoint, this_host

_MIB = 1 << 20
_GROUPS = "/sys/fs/cgroup/memory"


class Trainer(Actor):
    """Keeps what it makes in each step."""

    def __init__(self) -> None:
        self.kept: list[object] = []

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def keep(self, rank: int, size: int) -> None:
        if current_rank().rank == rank:
            self.kept.append(bytearray(os.urandom(1)) * size)

    @endpoint
    def start_threads(self, rank: int, number: int) -> None:
        for _ in range(number if current_rank().rank == rank else 0):
            threading.Thread(target=self.prefetch, daemon=True).start()

    def prefetch(self) -> None:
        threading.Event().wait()

    @endpoint
    def open_files(self, rank: int, number: int) -> None:
        for _ in range(number if current_rank().rank == rank else 0):
            self.kept.append(os.open(__file__, os.O_RDONLY))

    @endpoint
    def share(self, rank: int, number: int) -> None:
        for index in range(number if current_rank().rank == rank else 0):
            with open(f"/dev/shm/batch-{index}", "w+b") as file:
                file.truncate(_MIB)
                page = mmap.mmap(file.fileno(), _MIB)
            page[:] = bytes(_MIB)
            self.kept.append(page)


def _limited(pid: int, limit: int) -> Path:
    """A cgroup with this limit of memory, and this process in it."""
    group = cgroup(_GROUPS)
    (group / "memory.limit_in_bytes").write_text(str(limit))
    (group / "cgroup.procs").write_text(str(pid))
    return group


def oom() -> None:
    """The kernel kills one rank because the memory of its cgroup has run out."""
    monarch.actor.unhandled_fault_hook = lambda failure: None
    trainers = this_host().spawn_procs({"gpus": 4}, name="workers").spawn("trainer", Trainer)
    _limited(trainers.slice(gpus=1).pid.call_one().get(), 128 * _MIB)
    time.sleep(3)  # sleeps: the agent reads the cgroups of its procs every second
    try:
        while True:
            trainers.keep.call(1, 16 * _MIB).get()
    except SupervisionError:
        rest()


def memory_pressure() -> None:
    """One rank has used nearly all memory of its cgroup."""
    trainers = this_host().spawn_procs({"gpus": 3}, name="workers").spawn("trainer", Trainer)
    group = _limited(trainers.slice(gpus=1).pid.call_one().get(), 400 * _MIB)
    while int((group / "memory.usage_in_bytes").read_text()) < 395 * _MIB:
        trainers.keep.call(1, _MIB).get()
    rest()


def thread_leak() -> None:
    trainers = this_host().spawn_procs({"gpus": 4}, name="workers").spawn("trainer", Trainer)
    trainers.start_threads.call(2, 300).get()
    rest()


def descriptor_leak() -> None:
    trainers = this_host().spawn_procs({"gpus": 4}, name="workers").spawn("trainer", Trainer)
    trainers.open_files.call(3, 900).get()
    rest()


def shared_memory_leak() -> None:
    """One rank never removes its segments, until shared memory is full."""
    in_memory(64 * _MIB, Path("/dev/shm"))
    trainers = this_host().spawn_procs({"gpus": 2}, name="workers").spawn("trainer", Trainer)
    free = os.statvfs("/dev/shm").f_bavail * os.statvfs("/dev/shm").f_frsize
    trainers.share.call(1, free // _MIB).get()
    rest()


FAULTS = (
    Fault("oom", oom, r"trainer rank 1 .*pid \d+.* was killed for memory", 0.5, _GROUPS),
    Fault(
        "memory_pressure", memory_pressure, r"trainer rank 1 .*has nearly used up the memory of its cgroup: \d+ of 400 MiB", 0.5, _GROUPS
    ),
    Fault("thread_leak", thread_leak, r"trainer rank 2 .*has 3\d\d threads: 300 of them stand in memory\.py:\d+ in prefetch"),
    Fault("descriptor_leak", descriptor_leak, r"trainer rank 3 .*has 9\d\d open descriptors of at most .*, other ranks have \d+"),
    Fault("shared_memory_leak", shared_memory_leak, r"/dev/shm of host .* is full.*trainer rank 1 .*uses \d\d MiB", 0.5, "/proc/1/ns"),
)
