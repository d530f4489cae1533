"""Programs whose disk is slow, frozen or read-only. All of them need root."""

from __future__ import annotations

import mmap
import os
import subprocess
import tempfile
from pathlib import Path
from shutil import which

from bench.faults.machine import cgroup, mounted, started
from bench.faults.program import Fault, go_on, rest
from monarch.actor import Actor, SupervisionError, current_rank, endpoint, this_host

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
    def save(self, rank: int, path: str, size: int = 1) -> None:
        if current_rank().rank == rank:
            with open(path, "wb") as file:
                for _ in range(size):
                    file.write(os.urandom(_MIB))
                    os.fsync(file.fileno())


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


def _made(kind: str, size: int) -> Path:
    """A new file system of this kind and size in bytes, in a file."""
    image = Path(tempfile.mkdtemp(prefix="faults-", dir="/var/tmp")) / "image"
    with open(image, "wb") as file:
        file.truncate(size)
    subprocess.run([f"mkfs.{kind}", "-q", image], check=True)
    return mounted("-o", "loop", str(image))


def frozen_disk() -> None:
    """One rank writes to a file system that takes no writes for now."""
    place = _made("ext4", 32 * _MIB)
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


def quota() -> None:
    """One rank writes a checkpoint that is larger than the quota of its folder."""
    place = _made("btrfs", 128 * _MIB)
    subprocess.run(["btrfs", "quota", "enable", place], check=True)
    subprocess.run(["btrfs", "qgroup", "limit", "4M", place], check=True)
    go_on()
    trainers = this_host().spawn_procs({"gpus": 3}, name="workers").spawn("trainer", Trainer)
    trainers.save.broadcast(1, str(place / "checkpoint"), 16)
    while True:
        try:
            trainers.pid.call().get()
        except SupervisionError:
            rest()


FAULTS = (
    Fault("slow_disk", slow_disk, r"trainer rank 2 .*has waited for a disk in disks\.py:\d+ in load", 6.0, _GROUPS),
    Fault("frozen_disk", frozen_disk, r"trainer rank 1 .*has waited for a disk in disks\.py:\d+ in save", 6.0, "/proc/1/ns"),
    Fault("read_only", read_only, r"/\S+/faults-\w+ of host .* is mounted read-only", 0.5, "/proc/1/ns"),
    Fault("no_inodes", no_inodes, r"/\S+/faults-\w+ of host .* has no free inode", 0.5, "/proc/1/ns"),
    Fault(
        "quota",
        quota,
        r"trainer rank 1 .*raised OSError: \[Errno 122\] Disk quota exceeded in disks\.py:\d+ in save",
        0.5,
        "/proc/1/ns",
        lacks=lambda: "" if which("mkfs.btrfs") else "mkfs.btrfs",
    ),
)
