"""Programs that reach a limit of their machine. Mounts and cgroups need root."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.faults.actors import Trainer
from bench.faults.program import Fault, rest
from monarch.actor import ProcMesh, this_host

_MIB = 1 << 20


def mounted(*arguments: str, at: Path | None = None) -> Path:
    """The folder of a new mount with these arguments of `mount`, in a name space of mounts of this process alone."""
    os.unshare(os.CLONE_NEWNS) if hasattr(os, "unshare") else _unshare()
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    folder = at or Path(tempfile.mkdtemp(prefix="faults-"))
    subprocess.run(["mount", *arguments, folder], check=True)
    return folder


def in_memory(size: int, at: Path | None = None) -> Path:
    """A file system in memory of this size."""
    return mounted("-t", "tmpfs", "-o", f"size={size}", "faults", at=at)


def _unshare() -> None:
    """`unshare` of Python 3.12 for older ones."""
    import ctypes

    if ctypes.CDLL(None, use_errno=True).unshare(0x00020000) != 0:
        raise OSError(ctypes.get_errno(), "unshare")


def cgroup(controller: str) -> Path:
    """A new cgroup of a controller. Groups of programs that have ended are removed; the kernel keeps a group with a process in it."""
    for old in Path(controller).glob("faults-*"):
        with contextlib.suppress(OSError):
            old.rmdir()
    group = Path(controller, f"faults-{os.getpid()}")
    group.mkdir()
    return group


def started(ranks: int) -> ProcMesh:
    procs = this_host().spawn_procs({"gpus": ranks}, name="workers")
    procs.spawn("trainer", Trainer).pid.call().get()
    return procs


def full_disk() -> None:
    """The temporary folder of the job, on a file system of its own, is full."""
    folder = in_memory(64 * _MIB)
    os.environ["TMPDIR"] = str(folder)
    tempfile.tempdir = None
    procs = started(2)
    with open(folder / "checkpoint", "wb") as file:
        try:
            while True:
                file.write(bytes(_MIB))
                file.flush()
        except OSError:
            pass
    del procs
    rest()


def descriptors() -> None:
    """A leak of descriptors in the client."""
    procs = started(2)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, most), most))
    kept = [os.open(os.devnull, os.O_RDONLY) for _ in range(512 - len(os.listdir("/proc/self/fd")) - 8)]
    del procs, kept
    rest()


def cgroup_limit() -> None:
    """One rank may use a twentieth of a processor."""
    procs = this_host().spawn_procs({"gpus": 3}, name="workers")
    trainers = procs.spawn("trainer", Trainer)
    pid = trainers.slice(gpus=1).pid.call_one().get()
    group = cgroup("/sys/fs/cgroup/cpu")
    (group / "cpu.cfs_period_us").write_text("100000")
    (group / "cpu.cfs_quota_us").write_text("5000")
    (group / "cgroup.procs").write_text(str(pid))
    rest(trainers.step.call(30.0))


def processor_theft() -> None:
    """A neighbour takes the processor of one rank, whose cgroup has little weight."""
    procs = this_host().spawn_procs({"gpus": 3}, name="workers")
    trainers = procs.spawn("trainer", Trainer)
    pid = trainers.slice(gpus=1).pid.call_one().get()
    processor = {min(os.sched_getaffinity(0))}
    group = cgroup("/sys/fs/cgroup/cpu")
    (group / "cpu.shares").write_text("16")
    (group / "cgroup.procs").write_text(str(pid))
    for thread in os.listdir(f"/proc/{pid}/task"):
        os.sched_setaffinity(int(thread), processor)
    neighbour = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", sys.executable, "-c", "while True: pass"])
    os.sched_setaffinity(neighbour.pid, processor)
    rest(trainers.step.call(60.0))


FAULTS = (
    Fault(
        "processor_theft",
        processor_theft,
        # On a busy machine the rank has too little of a processor to answer its agent.
        r"(trainer|workers) rank 1 .*gets (\d+\.\d% of a processor where other ranks on host \S+ get \d+%|no processor time)",
        6.0,
        "/sys/fs/cgroup/cpu",
    ),
    Fault("full_disk", full_disk, r"/tmp/faults-\w+ of host .* is full", 0.5, "/proc/1/ns"),
    Fault("descriptors", descriptors, r"the client has \d+ of at most 512 open descriptors", 0.5),
    Fault("cgroup_limit", cgroup_limit, r"the cgroup of 1 proc of host .*limits processor time", 2.0, "/sys/fs/cgroup/cpu"),
)
