"""Programs below this process, and where they and the threads of this process stand in the kernel."""

from __future__ import annotations

import os
import platform

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# The most threads and programs that are looked at.
_MOST = 512
_MOST_PROGRAMS = 64
# The numbers of the system calls `read` and `write`.
_CALLS = {"x86_64": ("0", "1"), "aarch64": ("63", "64")}


def children() -> list[int]:
    """The pids of the programs below this process, those of its own first. Programs that start others fork in their main threads."""
    pids = [pid for thread in os.listdir("/proc/self/task")[:_MOST] for pid in _children("self", thread)]
    for pid in pids:
        if len(pids) >= _MOST_PROGRAMS:
            break
        pids += _children(pid, pid)
    return [int(pid) for pid in pids]


def name_and_state(pid: int) -> tuple[str, str]:
    """The name of a process, of at most 15 bytes, and its state letter in the kernel; empty for one that has ended."""
    try:
        before, _, after = text(f"/proc/{pid}/stat").rpartition(")")
    except OSError:
        return "", ""
    return before.partition("(")[2], after.split()[0]


def program(pid: int) -> list[Any]:
    """A program: its pid, name and state letter, the function of the kernel in which it waits, and the file that it reads or writes."""
    name, state = name_and_state(pid)
    try:
        place = text(f"/proc/{pid}/wchan").strip("0\n")
    except OSError:
        place = ""
    call, number = call_of(f"/proc/{pid}/syscall")
    file = ""
    if call:
        try:
            file = f"{call}s {os.readlink(f'/proc/{pid}/fd/{number}')}"
        except OSError:
            pass
    return [pid, name, state, place, file]


def call_of(path: str) -> tuple[str, int]:
    """`read` or `write` and its descriptor, for a thread that is in such a system call; the text is empty otherwise."""
    try:
        words = text(path).split()
    except OSError:
        return "", -1
    calls = _CALLS.get(platform.machine(), ())
    if len(words) < 2 or words[0] not in calls:
        return "", -1
    return ("read", "write")[calls.index(words[0])], int(words[1], 16)


def _children(process: str, thread: str) -> list[str]:
    try:
        return text(f"/proc/{process}/task/{thread}/children").split()
    except OSError:  # the thread has ended, or the kernel has no such file
        return []


def text(path: str) -> str:
    """The content of a file of the kernel."""
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()
