"""Limits of this machine that processes of the job meet: their file systems and descriptors. Processes of other machines are left out."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator

from monarch.telemetry._diagnose.inspected import Looked, procs_of
from monarch.telemetry._diagnose.snapshot import Check, Host, Proc, Snapshot, ranked

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
    folders: dict[str, list[Proc]] = {}
    for proc in here:
        for folder in (_SHARED, *_folders(proc.pid)):
            folders.setdefault(folder, []).append(proc)
    seen: set[int] = set()
    for folder, procs in list(folders.items())[:_MOST]:
        uids = tuple(proc.uid for proc in procs)
        # A process may have other mounts than this one.
        path = f"/proc/{procs[0].pid}/root{folder}"
        answered, stat = _within(lambda path=path: os.statvfs(path), _HANGS)
        if not answered:
            yield Check("hangs", host, folder, _HANGS, _HANGS, uids, f"statvfs({path!r}) has not returned")
        elif stat is not None and stat.f_blocks and not stat.f_flag & os.ST_RDONLY and stat.f_fsid not in seen | {0}:
            seen.add(stat.f_fsid)
            used, size = (stat.f_blocks - stat.f_bavail) * stat.f_frsize, stat.f_blocks * stat.f_frsize
            yield Check("file_system", host, folder, used, size, uids, path)
            if stat.f_files:
                yield Check("inodes", host, folder, stat.f_files - stat.f_ffree, stat.f_files, uids, path)
    for proc in here:
        used, limit = _descriptors(proc.pid)
        if limit:
            name = "the client" if proc.mesh is None else f"{ranked(proc.mesh, proc.rank, proc.size)} (pid {proc.pid})"
            yield Check("descriptors", host, name, used, limit, (proc.uid,), f"/proc/{proc.pid}/fd")


def without_answer(number: int, pid: int | None, error: str) -> Snapshot:
    """The snapshot of a job whose client gives no answer: the state of its process in the kernel."""
    host = os.uname().nodename
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            kernel = file.read().rpartition(b")")[2].split()[0].decode()
    except (OSError, IndexError):
        kernel = ""
    if kernel not in ("T", "t"):
        # An answer that comes too late is no fault of the job: the machine may be overloaded.
        return Snapshot(missing=(f"process {pid or number}: {error}",))
    client = Proc(f"{number:016x}", host, pid or 0, "client", kernel=kernel, answered=False)
    return Snapshot((client,), (), (Host(host),), sources=(f"process {pid} of this machine",))


def local_pids(looked: Looked) -> list[int]:
    """The pids of the processes of this machine."""
    return [int(proc["pid"]) for host, proc in procs_of(looked) if proc["pid"] and _is_local(host, int(proc["pid"]))]


def _is_here(proc: Proc) -> bool:
    return proc.pid > 0 and _is_local(proc.host, proc.pid)


def _is_local(host: str, pid: int) -> bool:
    """Whether a process runs on this machine: by the name of its host and its pid."""
    return host == os.uname().nodename and os.path.isdir(f"/proc/{pid}/task")


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
