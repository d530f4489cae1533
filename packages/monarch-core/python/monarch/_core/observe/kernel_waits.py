"""What threads of this process, and the programs below it, wait for in the kernel: files and pipes, sockets, locks of files, programs.

The kernel shows the system call of a thread that waits, with its arguments, in `/proc/PID/task/TID/syscall`: for a process itself and, with
the default restrictions, for the processes below it. The target of a descriptor, and the process with the other end of it, are in `/proc`
too. All of it is read only with the stacks.
"""

from __future__ import annotations

import os
import struct
import sys
from itertools import islice

from monarch._core.observe.connections import since_sent
from monarch._core.observe.kernel_places import children, text
from monarch._core.observe.sockets import Sockets

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

# The system calls that may wait, by their numbers.
_CALLS = {
    "x86_64": {
        0: "read",
        1: "write",
        7: "poll",
        42: "connect",
        44: "send",
        45: "receive",
        46: "send",
        47: "receive",
        61: "child",
        72: "lock",
        73: "lock",
        202: "futex",
        230: "sleep",
        247: "child_by_id",
        271: "poll",
    },
    "aarch64": {
        25: "lock",
        32: "lock",
        63: "read",
        64: "write",
        73: "poll",
        95: "child_by_id",
        98: "futex",
        115: "sleep",
        203: "connect",
        206: "send",
        207: "receive",
        211: "send",
        212: "receive",
        260: "child",
    },
}
_BY_DESCRIPTOR = {"read", "write", "connect", "send", "receive"}
# A futex that only threads of the same process use; `waitid` for the process of a pid; `fcntl` that waits for a lock of a process or file.
_PRIVATE = 128
_BY_PID = 1
_LOCK_CALLS = {7, 38}
# The most threads that are looked at, the most descriptors of a `poll`, and the most descriptors of all processes.
_MOST_THREADS = 64
_MOST_POLLED = 4
_MOST_DESCRIPTORS = 20_000
_WRITES = 1
# The process of a lock that belongs to an open file.
_OF_FILE = -1


def kernel_waits(idents: Iterable[int]) -> dict[str, Any]:
    """`threads`: rows of these threads of this process, by their numbers, that wait; `programs`: rows of the processes below it."""
    calls = _CALLS.get(os.uname().machine)
    if calls is None:
        return {"threads": [], "programs": []}
    threads = [row for native in _natives(idents) if (row := _row(calls, "self", str(native))) is not None]
    programs = [row for child in children() if (row := _program(calls, child)) is not None]
    # Programs are of interest where a thread may wait for one.
    waiting = [*threads, *(one["wait"] for one in programs if one["wait"])] if threads else []
    _add_ends(waiting)
    _add_holders(waiting)
    return {"threads": threads, "programs": programs}


def _natives(idents: Iterable[int]) -> list[int]:
    """The numbers of threads in the kernel."""
    threading = sys.modules.get("threading")
    known: dict[int, Any] = {} if threading is None else dict(threading._active)
    found = [known[ident].native_id for ident in islice(idents, _MOST_THREADS) if ident in known]
    return [native for native in found if native is not None]


def _program(calls: dict[int, str], pid: int) -> dict[str, Any] | None:
    """The name, state letter, processor time in ticks and number of threads of a program, and the wait of its main thread."""
    try:
        before, _, after = text(f"/proc/{pid}/stat").rpartition(")")
        fields = after.split()
        row = {"pid": pid, "name": before.partition("(")[2], "state": fields[0], "ran": int(fields[11]) + int(fields[12])}
        return {**row, "threads": int(fields[17]), "wait": _row(calls, str(pid), str(pid))}
    except (OSError, IndexError, ValueError):  # ended meanwhile
        return None


def _row(calls: dict[int, str], process: str, thread: str) -> dict[str, Any] | None:
    """The system call in which a thread waits, with what it waits for; None for one that runs, or that waits for something else."""
    try:
        words = text(f"/proc/{process}/task/{thread}/syscall").split()
        name = calls.get(int(words[0]))
        arguments = [int(word, 16) for word in words[1:7]]
    except (OSError, ValueError, IndexError):  # it runs, it has ended, or it may not be looked at
        return None
    if name is None:
        return None
    row: dict[str, Any] = {"pid": os.getpid() if process == "self" else int(process), "thread": int(thread), "call": name}
    if name in _BY_DESCRIPTOR:
        return {**row, **_target(process, arguments[0])}
    if name == "lock":
        is_flock = int(words[0]) in (73, 32)
        return {**row, **_target(process, arguments[0])} if is_flock or arguments[1] in _LOCK_CALLS else None
    if name == "child":
        return {**row, "child": _signed(arguments[0])}
    if name == "child_by_id":
        return {**row, "call": "child", "child": _signed(arguments[1])} if arguments[0] == _BY_PID else None
    if name == "futex":
        # Without a limit of time.
        return {**row, "private": bool(arguments[1] & _PRIVATE)} if arguments[3] == 0 else None
    if name == "poll":
        polled = [_target(process, number) for number in _polled(arguments)] if process == "self" else []
        return {**row, **polled[0]} if len(polled) == 1 else None
    return row


def _signed(value: int) -> int:
    return struct.unpack("=i", struct.pack("=I", value & 0xFFFFFFFF))[0]


def _polled(arguments: list[int]) -> list[int]:
    """The descriptors of a call of `poll`, from the memory of this process."""
    number = min(arguments[1], _MOST_POLLED)
    try:
        memory = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        data = os.pread(memory, 8 * number, arguments[0])
    except (OSError, OverflowError):  # the call has returned meanwhile
        return []
    finally:
        os.close(memory)
    return [descriptor for descriptor, _, _ in struct.iter_unpack("=ihh", data[: len(data) // 8 * 8])]


def _target(process: str, descriptor: int) -> dict[str, Any]:
    try:
        return {"descriptor": descriptor, "target": os.readlink(f"/proc/{process}/fd/{descriptor}")}
    except OSError:  # closed meanwhile
        return {"descriptor": descriptor, "target": ""}


def _add_holders(rows: list[dict[str, Any]]) -> None:
    """The process that holds a lock of a file for which another one waits."""
    waiting = [row for row in rows if row["call"] == "lock"]
    if not waiting:
        return
    try:
        lines = text("/proc/locks").splitlines()
    except OSError:  # a container may hide the file
        return
    holders: dict[str, int] = {}
    # By the number of the file: a process may wait for several. Locks of open files have no process.
    wanted: dict[tuple[str, str], int] = {}
    for line in lines:
        words = line.split()
        if words[1] == "->":
            wanted[words[5], words[6].rpartition(":")[2]] = holders.get(words[0], 0)
        else:
            holders[words[0]] = int(words[4])
    for row in waiting:
        file = _fields(f"/proc/{row['pid']}/fdinfo/{row['descriptor']}").get("ino", "")
        holder = next((wanted[pid, file] for pid in (str(row["pid"]), str(_OF_FILE)) if (pid, file) in wanted), 0)
        if holder == _OF_FILE or (holder and not os.path.exists(f"/proc/{holder}")):
            # The lock belongs to an open file, which a program may have got from the process that took it.
            holder = next(iter(_processes_with_lock(row["target"], file)), 0)
        row.update(holder=holder, holder_name=_name(holder))


def _fields(path: str) -> dict[str, str]:
    """The fields of `/proc/PID/fdinfo/FD`; of several with one name the last."""
    try:
        return {name: value.strip() for name, _, value in (line.partition(":") for line in text(path).splitlines())}
    except OSError:  # closed meanwhile
        return {}


def _processes_with_lock(target: str, file: str) -> Iterator[int]:
    """The processes of this user that have a file open by which it is locked."""
    for pid, number in _open_files({target}):
        lock = _fields(f"/proc/{pid}/fdinfo/{number}").get("lock", "").split()
        if len(lock) > 5 and lock[5].rpartition(":")[2] == file:
            yield pid


def _name(pid: int) -> str:
    try:
        return text(f"/proc/{pid}/comm").strip()
    except OSError:
        return ""


def _add_ends(rows: list[dict[str, Any]]) -> None:
    """The processes with the other ends of pipes and sockets."""
    pipes = [row for row in rows if row.get("target", "").startswith("pipe:")]
    sockets = [row for row in rows if row.get("target", "").startswith("socket:")]
    table = Sockets() if sockets else None
    for row in sockets:
        if table is not None:
            row.update(table.described(row["target"]))
        if row.get("accepted") is False and row["pid"] == os.getpid():
            row["sent"] = since_sent(row["descriptor"])
    wanted = {row["target"] for row in pipes} | {row["peer_target"] for row in sockets if row.get("peer_target")}
    if not wanted:
        return
    holders = _holders_of(wanted)
    for row in pipes:
        found = holders.get(row["target"], [])
        row["readers"] = sorted({pid for pid, writes in found if not writes})
        row["writers"] = sorted({pid for pid, writes in found if writes})
    for row in sockets:
        pids = sorted({pid for pid, _ in holders.get(row.get("peer_target", ""), [])})
        row["peers"] = [[pid, _name(pid)] for pid in pids[:_MOST_POLLED]]


def _holders_of(targets: set[str]) -> dict[str, list[tuple[int, bool]]]:
    """The processes of this user that have these pipes and sockets open, and whether for writing."""
    found: dict[str, list[tuple[int, bool]]] = {}
    for pid, number in _open_files(targets):
        try:
            flags = _fields(f"/proc/{pid}/fdinfo/{number}")["flags"]
            found.setdefault(os.readlink(f"/proc/{pid}/fd/{number}"), []).append((pid, int(flags, 8) & 3 == _WRITES))
        except (OSError, KeyError, ValueError):  # closed meanwhile
            continue
    return found


def _open_files(targets: set[str]) -> list[tuple[int, str]]:
    """The descriptors of this user's processes with one of these targets; none where there are too many to look at."""
    found: list[tuple[int, str]] = []
    looked = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            numbers = os.listdir(f"/proc/{pid}/fd")
        except OSError:  # of another user, or ended
            continue
        for number in numbers:
            looked += 1
            try:
                if os.readlink(f"/proc/{pid}/fd/{number}") in targets:
                    found.append((int(pid), number))
            except OSError:  # closed meanwhile
                continue
        if looked > _MOST_DESCRIPTORS:
            return []
    return found
