"""Has the kernel refuse direct copies between processes, as the profiles of containers do."""

from __future__ import annotations

import ctypes
import os
import platform
import struct

# System calls: seccomp, process_vm_readv, process_vm_writev.
_NUMBERS = {"x86_64": (317, 310, 311), "aarch64": (277, 270, 271)}
_LOAD_NUMBER, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _EPERM = 0x7FFF0000, 0x00050001
_PR_SET_NO_NEW_PRIVS, _SET_MODE_FILTER, _ALL_THREADS = 38, 1, 1


def refuse_direct_copies() -> None:
    """For this process, all its threads, and what it starts."""
    seccomp, read, write = _NUMBERS[platform.machine()]
    rows = (
        (_LOAD_NUMBER, 0, 0, 0),
        (_JUMP_IF_EQUAL, 1, 0, read),
        (_JUMP_IF_EQUAL, 0, 1, write),
        (_RETURN, 0, 0, _EPERM),
        (_RETURN, 0, 0, _ALLOW),
    )
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *row) for row in rows))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(rows), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.syscall(seccomp, _SET_MODE_FILTER, _ALL_THREADS, program):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
