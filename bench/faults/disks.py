"""Programs whose disk is slow, frozen or read-only. All of them need root."""

from __future__ import annotations

import mmap
import os
import subprocess
import tempfile
from pathlib import Path

from bench.faults.machine import cgroup, mounted, started
from bench.faults.program import Fault, rest
from monarch.actor import Actor, current_rank, endpoint, this_host

_MIB = 1 << 20
_GROUPS = "/sys/fs/cgroup/blkio"


class Trainer(Actor):
    """Reads its data and writes checkpoints."""

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def load(self, rank: int, path: str) -> int:
        if current_rank().rank != rank:
            return 0
        # Past the cache of the kernel, as readers of large data sets do.
        handle = os.open(path, os.O_RDONLY | os.O_DIRECT)
        buffer = mmap.mmap(-1, _MIB)
        read = 0
        while more := os.readv(handle, [buffer]):
            read += more
        return read

    @endpoint
    def save(self, rank: int, path: str) -> None:
        if current_rank().rank == rank:
            with open(path, "wb") as file:
                file.write(bytes(_MIB))


def slow_disk() -> None:
    """One rank reads from a disk that gives it 64 KiB a second."""
    folder = Path(tempfile.mkdtemp(prefix="faults-", dir="/var/tmp"))
    data = folder / "data"
    data.write_bytes(os.urandom(8 * _MIB))
    os.sync()
    number = os.stat(data).st_dev
    trainers = this_host().spawn_procs({"gpus": 3}, name="workers").spawn("trainer", Trainer)
    group = cgroup(_GROUPS)
    (group / "blkio.throttle.read_bps_device").write_text(f"{os.major(number)}:{os.minor(number)} {64 << 10}")
    (group / "cgroup.procs").write_text(str(trainers.slice(gpus=2).pid.call_one().get()))
    rest(trainers.load.call(2, str(data)))


def frozen_disk() -> None:
    """One rank writes to a file system that takes no writes for now."""
    folder = Path(tempfile.mkdtemp(prefix="faults-", dir="/var/tmp"))
    image = folder / "image"
    with open(image, "wb") as file:
        file.truncate(32 * _MIB)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    place = mounted("-o", "loop", str(image))
    trainers = this_host().spawn_procs({"gpus": 3}, name="workers").spawn("trainer", Trainer)
    trainers.pid.call().get()
    # A process that writes to a frozen file system cannot end. This one thaws it once the program has ended, by SIGKILL too.
    thaw = subprocess.Popen(["sh", "-c", 'read -r _; fsfreeze -u "$0"', place], stdin=subprocess.PIPE, start_new_session=True)
    assert thaw.poll() is None
    subprocess.run(["fsfreeze", "-f", place], check=True)
    rest(trainers.save.call(1, str(place / "checkpoint")))


def read_only() -> None:
    """The folder of temporary files cannot be written to."""
    folder = mounted("-t", "tmpfs", "-o", f"size={64 * _MIB}", "faults")
    os.environ["TMPDIR"] = str(folder)
    tempfile.tempdir = None
    started(2)
    subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
    rest()


def no_inodes() -> None:
    """The folder of temporary files has room for bytes, and for no further file."""
    folder = mounted("-t", "tmpfs", "-o", f"size={64 * _MIB},nr_inodes=100", "faults")
    os.environ["TMPDIR"] = str(folder)
    tempfile.tempdir = None
    started(2)
    try:
        for index in range(100):
            (folder / f"sample-{index}").touch()
    except OSError:
        pass
    rest()


FAULTS = (
    Fault("slow_disk", slow_disk, r"trainer rank 2 .*has waited for a disk in disks\.py:\d+ in load", 6.0, _GROUPS),
    Fault("frozen_disk", frozen_disk, r"trainer rank 1 .*has waited for a disk in disks\.py:\d+ in save", 6.0, "/proc/1/ns"),
    Fault("read_only", read_only, r"/\S+/faults-\w+ of host .* is mounted read-only", 0.5, "/proc/1/ns"),
    Fault("no_inodes", no_inodes, r"/\S+/faults-\w+ of host .* has no free inode", 0.5, "/proc/1/ns"),
)
