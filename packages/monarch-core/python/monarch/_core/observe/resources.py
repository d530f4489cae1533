"""The resources that this process uses, with their limits: memory, threads, descriptors, cgroups, file systems, its clock.

They are part of the answer with the stacks, and are read only then: before that a process pays nothing. The kernel's files are the
source, so a resource that the kernel does not report is left out. A file system that does not answer delays no answer for longer than
`_FILE_SYSTEMS_TIMEOUT`.
"""

from __future__ import annotations

import os
import time

from monarch._core.observe.connections import connections
from monarch._core.observe.kernel_places import call_of, children, name_and_state

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

# Seconds for all file systems together, after which those without an answer are reported as such.
_FILE_SYSTEMS_TIMEOUT = 0.3
# The most threads and descriptors that are looked at one by one.
_MOST = 512
# The most processes below this one that are looked at: below a client are all its procs, which have answers of their own.
_MOST_PROGRAMS = 64
# The fields of /proc/PID/stat after the name, by their index there.
_MAJOR_FAULTS = 9
# The fields of /proc/PID/status with sizes in KiB.
_SIZES = {"VmRSS": "resident", "RssAnon": "anonymous", "RssShmem": "shared", "VmSwap": "swapped"}
_GROUPS = "/sys/fs/cgroup"
_SHARED_MEMORY = "/dev/shm"
# Writes of stdout and stderr.
_PRINTS = (("write", 1), ("write", 2))
# A cgroup without a limit has about this limit or a larger one.
_NO_LIMIT = 1 << 60

_asked: dict[str, dict[str, Any]] = {}


def resources() -> dict[str, Any]:
    """The resources by their names; the ones that cannot be read are left out."""
    found: dict[str, Any] = {"clock": [time.time(), time.monotonic()]}
    for name, read in _READERS.items():
        try:
            found[name] = read()
        except (OSError, ValueError, KeyError, IndexError):  # files of the kernel that are missing, or that have another form
            continue
    return found


def _memory() -> dict[str, int]:
    """Sizes in bytes, and the number of pages that were read from a disk."""
    fields = dict(line.split(":", 1) for line in _text("/proc/self/status").splitlines())
    found = {name: int(fields[field].split()[0]) << 10 for field, name in _SIZES.items() if field in fields}
    found["major_faults"] = int(_text("/proc/self/stat").rpartition(")")[2].split()[_MAJOR_FAULTS])
    return found


def _threads() -> dict[str, Any]:
    """The number of threads, and the native numbers of those in an uninterruptible wait of the kernel, and in a write of the output."""
    numbers = os.listdir("/proc/self/task")
    return {
        "number": len(numbers),
        "blocked": [int(number) for number in numbers[:_MOST] if _state(number) == "D"],
        "printing": [int(number) for number in numbers[:_MOST] if call_of(f"/proc/self/task/{number}/syscall") in _PRINTS],
    }


def _programs() -> dict[str, Any]:
    """The number of processes below this one, and the pid and name of each that a signal has stopped: programs of a proc, such as ranks."""
    pids = children()
    states = [(pid, *name_and_state(pid)) for pid in pids[:_MOST_PROGRAMS]]
    return {"number": len(pids), "stopped": [[pid, name] for pid, name, state in states if state == "T"]}


def _disk() -> dict[str, int]:
    """The bytes that were read from disks and written to them so far."""
    fields = dict(line.split(": ") for line in _text("/proc/self/io").splitlines())
    return {"read": int(fields["read_bytes"]), "written": int(fields["write_bytes"])}


def _state(thread: str) -> str:
    try:
        return _text(f"/proc/self/task/{thread}/stat").rpartition(")")[2].split()[0]
    except OSError:  # the thread has ended
        return ""


def _descriptors() -> dict[str, Any]:
    """The number of open descriptors, their limit, and the numbers of those to the most frequent targets."""
    import resource

    numbers = os.listdir("/proc/self/fd")
    targets: dict[str, int] = {}
    for number in numbers[-_MOST:]:
        try:
            # `socket:[812]` and `pipe:[813]` are one target each.
            target = os.readlink(f"/proc/self/fd/{number}").partition(":[")[0]
        except OSError:  # the descriptor of the list itself
            continue
        targets[target] = targets.get(target, 0) + 1
    most = sorted(targets.items(), key=lambda one: -one[1])[:3]
    return {"number": len(numbers), "limit": resource.getrlimit(resource.RLIMIT_NOFILE)[0], "targets": most}


def _cgroups() -> dict[str, Any]:
    """The limits of the cgroups of this process with what is used of them; groups without a limit are left out."""
    groups = dict(line.split(":", 2)[1:] for line in _text("/proc/self/cgroup").splitlines())
    found: dict[str, Any] = {}
    for name, first, second in _LIMITS:
        for controller, files, folder in ((name, first, f"{_GROUPS}/{name}"), ("", second, _GROUPS)):
            path = f"{folder}/{groups.get(controller, '').strip('/')}".rstrip("/")
            values = {key: _number(f"{path}/{file}", field) for key, (file, field) in files.items()}
            used, limit = values.get("used"), values.get("limit")
            if used is not None and limit is not None and limit < _NO_LIMIT:
                found[name] = {"path": path, **{key: value for key, value in values.items() if value is not None}}
                break
    return found


# A controller with the files of version 1 and 2, and the field of a file that has several.
_LIMITS = (
    (
        "memory",
        {
            "used": ("memory.usage_in_bytes", ""),
            "limit": ("memory.limit_in_bytes", ""),
            "failures": ("memory.failcnt", ""),
            "cache": ("memory.stat", "total_inactive_file"),
        },
        {
            "used": ("memory.current", ""),
            "limit": ("memory.max", ""),
            "failures": ("memory.events", "max"),
            "cache": ("memory.stat", "inactive_file"),
        },
    ),
    (
        "pids",
        {"used": ("pids.current", ""), "limit": ("pids.max", "")},
        {"used": ("pids.current", ""), "limit": ("pids.max", "")},
    ),
)


def _number(path: str, field: str) -> int | None:
    """The number in a file, or in the line of a field; None for `max` and for a missing file."""
    try:
        words = _text(path).split()
        word = words[words.index(field) + 1] if field else words[0]
        return int(word)
    except (OSError, ValueError, IndexError):
        return None


def _file_systems() -> list[dict[str, Any]]:
    """The file systems of the working directory, of temporary files and of shared memory, each once."""
    from threading import Thread

    temporary = os.environ.get("TMPDIR", "/tmp")
    folders = dict.fromkeys((_SHARED_MEMORY, temporary, os.readlink("/proc/self/cwd")))
    # A call that has not returned keeps its thread: its folder is not asked again meanwhile.
    new = [folder for folder in folders if folder not in _asked]
    for folder in new:
        _asked[folder] = {"folder": folder, "since": time.monotonic()}
    thread = Thread(target=lambda: [_ask(folder) for folder in new], daemon=True, name="monarch-statvfs")
    thread.start()
    thread.join(_FILE_SYSTEMS_TIMEOUT)
    return [{**one, "is_temporary": one["folder"] == temporary} for one in _answers(folders)]


def _answers(folders: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for folder in folders:
        answer = _asked.get(folder)
        if answer is None or "error" in answer:
            _asked.pop(folder, None)
        elif "size" in answer:
            yield {name: value for name, value in _asked.pop(folder).items() if name != "since"}
        else:
            yield {"folder": folder, "hangs": time.monotonic() - answer["since"]}


def _ask(folder: str) -> None:
    answer = _asked[folder]
    try:
        stat = os.statvfs(folder)
        number = os.stat(folder).st_dev
    except OSError as error:
        answer["error"] = error.errno
        return
    answer.update(
        device=number,
        free=stat.f_bavail * stat.f_frsize,
        free_files=stat.f_favail,
        files=stat.f_files,
        read_only=bool(stat.f_flag & os.ST_RDONLY),
        size=stat.f_blocks * stat.f_frsize,
    )


def _text(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


_READERS = {
    "memory": _memory,
    "threads": _threads,
    "programs": _programs,
    "disk": _disk,
    "descriptors": _descriptors,
    "cgroups": _cgroups,
    "file_systems": _file_systems,
    "connections": connections,
}
