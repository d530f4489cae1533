"""Yama's rule for direct copies, on kernels that do not have it: from now on for this process and what it starts.

A file has the scope, as Yama's would, and a seccomp filter has a process of ours asked about every declaration of a tracer and
every copy. The copies themselves are the kernel's.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import select
import socket
import struct

from seccomp import NUMBERS, load

_CLONE_NEWNS, _MS_REC, _MS_PRIVATE = 0x20000, 0x4000, 0x40000
_PR_SET_PTRACER, _PR_CAPBSET_DROP, _CAP_SYS_PTRACE = 0x59616D61, 24, 19
_PRCTL = {"x86_64": 157, "aarch64": 167}
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _ASK = 0x7FFF0000, 0x7FC00000
# The number of the call, and the lower half of its first argument.
_NUMBER, _FIRST_ARGUMENT = 0, 16
_RECEIVE, _SEND, _GO_ON = 0xC0502100, 0xC0182101, 1
# Id, pid, flags, number, architecture, instruction, arguments; id, value, error, flags.
_QUESTION, _ANSWER = struct.Struct("<QIIiIQ6Q"), struct.Struct("<QqiI")


def without_the_right_to_trace() -> None:
    """What this process starts from now on is judged as that of an ordinary user."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_CAPBSET_DROP, _CAP_SYS_PTRACE, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "PR_CAPBSET_DROP")


def enforce(scope: int) -> None:
    """Before there are other threads."""
    _show(scope)
    here, there = socket.socketpair()
    # A fork instead of a thread: the querying thread may hold the GIL.
    if os.fork() == 0:
        here.close()
        try:
            _, received, _, _ = socket.recv_fds(there, 1, 1)
            _Rule(scope, received[0]).answer()
        finally:
            os._exit(0)
    _, *copies = NUMBERS[platform.machine()]
    rows = (
        (_LOAD, 0, 0, _NUMBER),
        (_JUMP_IF_EQUAL, 4, 0, copies[0]),
        (_JUMP_IF_EQUAL, 3, 0, copies[1]),
        (_JUMP_IF_EQUAL, 0, 3, _PRCTL[platform.machine()]),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_JUMP_IF_EQUAL, 0, 1, _PR_SET_PTRACER),
        (_RETURN, 0, 0, _ASK),
        (_RETURN, 0, 0, _ALLOW),
    )
    questions = load(rows, asking=True)
    socket.send_fds(here, [b"q"], [questions])
    for end in (here, there):
        end.close()
    os.close(questions)


class _Rule:
    def __init__(self, scope: int, questions: int) -> None:
        self.scope = scope
        self.questions = questions
        # The processes that others have named, by process.
        self.named: dict[int, int] = {}

    def answer(self) -> None:
        """Until no process is left that could ask."""
        poll = select.poll()
        poll.register(self.questions, select.POLLIN)
        while not poll.poll()[0][1] & select.POLLHUP:
            question = bytearray(_QUESTION.size)
            try:
                fcntl.ioctl(self.questions, _RECEIVE, question)
                id, thread, _, number, _, _, first, second, *_ = _QUESTION.unpack(question)
                fcntl.ioctl(self.questions, _SEND, _ANSWER.pack(id, 0, *self._answer(_process(thread), number, first, second)))
            except FileNotFoundError:  # killed during its query
                continue

    def _answer(self, process: int, number: int, first: int, second: int) -> tuple[int, int]:
        """An error, and a flag."""
        if number == _PRCTL[platform.machine()]:
            self.named[process] = second
            return 0, 0
        return (0, _GO_ON) if self._permits(process, first) else (-errno.EPERM, 0)

    def _permits(self, reader: int, owner: int) -> bool:
        """For processes without the right to trace: oneself, those that descend from the reader, and those that name an ancestor of it."""
        if reader == owner:
            return True
        if self.scope != 1:
            return self.scope == 0
        return reader in _line(owner) or self.named.get(owner) in _line(reader)


def _show(scope: int) -> None:
    """Where Yama would; for no other process."""
    libc = ctypes.CDLL(None, use_errno=True)
    folder = b"/proc/sys/kernel"
    steps = (
        lambda: libc.unshare(_CLONE_NEWNS),
        lambda: libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None),
        lambda: libc.mount(b"tmpfs", folder, b"tmpfs", 0, None),
    )
    for step in steps:
        if step():
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    os.mkdir("/proc/sys/kernel/yama")
    with open("/proc/sys/kernel/yama/ptrace_scope", "w") as f:
        f.write(f"{scope}\n")


def _process(thread: int) -> int:
    with open(f"/proc/{thread}/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("Tgid:"))


def _line(pid: int) -> list[int]:
    """The process, and those that it descends from."""
    line: list[int] = []
    while pid:
        line.append(pid)
        with open(f"/proc/{pid}/stat") as f:
            pid = int(f.read().rpartition(")")[2].split()[1])
    return line
