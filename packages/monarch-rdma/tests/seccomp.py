"""Has the kernel refuse direct copies between processes, as the profiles of containers do."""

from __future__ import annotations

import ctypes
import os
import platform
import struct

# Numbers of the system calls seccomp, process_vm_readv, process_vm_writev.
NUMBERS = {"x86_64": (317, 310, 311), "aarch64": (277, 270, 271)}
_LOAD_NUMBER, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _EPERM = 0x7FFF0000, 0x00050001
_PR_SET_NO_NEW_PRIVS, _SET_MODE_FILTER = 38, 1
_ALL_THREADS, _NEW_LISTENER = 1, 8


def refuse_direct_copies() -> None:
    """For this process, all its threads, and what it starts."""
    _, read, write = NUMBERS[platform.machine()]
    rows = (
        (_LOAD_NUMBER, 0, 0, 0),
        (_JUMP_IF_EQUAL, 1, 0, read),
        (_JUMP_IF_EQUAL, 0, 1, write),
        (_RETURN, 0, 0, _EPERM),
        (_RETURN, 0, 0, _ALLOW),
    )
    load(rows)


def load(rows: tuple[tuple[int, int, int, int], ...], asking: bool = False) -> int:
    """Installs a filter, for all threads. With `asking` for this thread and what it starts; gives the descriptor of its questions."""
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *row) for row in rows))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(rows), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    number, flag = NUMBERS[platform.machine()][0], _NEW_LISTENER if asking else _ALL_THREADS
    done = -1 if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) else libc.syscall(number, _SET_MODE_FILTER, flag, program)
    if done < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return done
