"""Limits of this machine that processes of the job meet: their file systems and descriptors. Processes of other machines are left out."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator

from monarch.telemetry._diagnose.snapshot import Check, Proc, Snapshot

# Seconds for a call to a file system, after which it hangs.
_HANGS = 1.0
_SHARED = "/dev/shm"
# The most file systems that are asked.
_MOST = 32


def machine_checks(found: Snapshot) -> Iterator[Check]:
    """The checks of the file systems that the processes of this machine use, and of their descriptors."""
    here = [proc for proc in found.procs if _is_here(proc)]
    if not here:
        return
    host = here[0].host
    folders: dict[str, list[str]] = {_SHARED: [proc.uid for proc in here]}
    for proc in here:
        for folder in _folders(proc.pid):
            folders.setdefault(folder, []).append(proc.uid)
    seen: set[int] = set()
    for folder, uids in list(folders.items())[:_MOST]:
        answered, stat = _within(lambda folder=folder: os.statvfs(folder), _HANGS)
        if not answered:
            yield Check("hangs", host, folder, _HANGS, _HANGS, tuple(uids), f"statvfs({folder!r}) has not returned")
        elif stat is not None and stat.f_blocks and not stat.f_flag & os.ST_RDONLY and stat.f_fsid not in seen | {0}:
            seen.add(stat.f_fsid)
            yield Check(
                "file_system", host, folder, (stat.f_blocks - stat.f_bavail) * stat.f_frsize, stat.f_blocks * stat.f_frsize, tuple(uids)
            )
            if stat.f_files:
                yield Check("inodes", host, folder, stat.f_files - stat.f_ffree, stat.f_files, tuple(uids))
    for proc in here:
        used, limit = _descriptors(proc.pid)
        if limit:
            yield Check("descriptors", host, f"{proc.name} (pid {proc.pid})", used, limit, (proc.uid,), f"/proc/{proc.pid}/fd")


def _is_here(proc: Proc) -> bool:
    """Whether a process runs on this machine: by its host's name and its pid."""
    return proc.host == os.uname().nodename and proc.pid > 0 and os.path.isdir(f"/proc/{proc.pid}/task")


def _folders(pid: int) -> Iterator[str]:
    """The working directory of a process, and its folder of temporary files."""
    try:
        yield os.readlink(f"/proc/{pid}/cwd")
        with open(f"/proc/{pid}/environ", "rb") as file:
            variables = dict(entry.split(b"=", 1) for entry in file.read(1 << 17).split(b"\0") if b"=" in entry)
    except OSError:
        return
    yield os.fsdecode(variables.get(b"TMPDIR", b"/tmp"))


def _descriptors(pid: int) -> tuple[int, int]:
    """Open descriptors of a process and their limit; 0 where they cannot be read."""
    try:
        with open(f"/proc/{pid}/limits", encoding="ascii", errors="replace") as file:
            line = next((line for line in file if line.startswith("Max open files")), "")
        limit = line.split()[3] if line else "0"
        return len(os.listdir(f"/proc/{pid}/fd")), int(limit) if limit.isdigit() else 0
    except OSError:
        return 0, 0


def _within(function: Callable[[], os.statvfs_result], seconds: float) -> tuple[bool, os.statvfs_result | None]:
    """Whether a call returns in time, and its result; a call that does not return keeps its thread."""
    found: list[os.statvfs_result | None] = []

    def run() -> None:
        try:
            found.append(function())
        except OSError:
            found.append(None)

    thread = threading.Thread(target=run, daemon=True, name="monarch-statvfs")
    thread.start()
    thread.join(seconds)
    return (True, found[0]) if found else (False, None)
