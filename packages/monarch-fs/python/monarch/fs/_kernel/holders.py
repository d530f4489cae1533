"""The processes that use a mount, from the links of /proc: they are read as text and followed nowhere."""

from __future__ import annotations

import os
from collections.abc import Iterator

from monarch.fs._kernel.mount_table import mount_row


def holders(target: str) -> list[tuple[int, str]]:
    """Process ids and commands of processes with a file, a directory, a program or mapped memory below `target`; those that can be seen."""
    row = mount_row(target)
    path = os.fsencode(row.path if row is not None else os.path.abspath(target))
    found: list[tuple[int, str]] = []
    for name in os.listdir("/proc"):
        if name.isdigit() and any(link == path or link.startswith(path + b"/") for link in _links(name)):
            found.append((int(name), _command(name)))
    return sorted(found)


def killed(thread: int) -> bool:
    """Whether a thread is about to end by a signal: the kernel makes SIGKILL, bit 8, of each signal that ends a process."""
    try:
        with open(f"/proc/{thread}/status", "rb") as file:
            lines = file.read().split(b"\n")
    except OSError:
        return False
    return any(line.startswith((b"SigPnd:", b"ShdPnd:")) and int(line.split()[1], 16) >> 8 & 1 for line in lines)


def _links(process: str) -> Iterator[bytes]:
    folder = f"/proc/{process}".encode()
    for name in (b"cwd", b"root", b"exe"):
        yield _link(folder + b"/" + name)
    try:
        numbers = os.listdir(folder + b"/fd")
    except OSError:
        numbers = []
    for number in numbers:
        yield _link(folder + b"/fd/" + number)
    try:
        with open(folder + b"/maps", "rb") as file:
            # Address, permissions, offset, device, inode, path.
            lines = [line.split(maxsplit=5) for line in file.read().split(b"\n")]
    except OSError:
        lines = []
    for fields in lines:
        if len(fields) == 6:
            yield fields[5].replace(b"\\012", b"\n")


def _link(path: bytes) -> bytes:
    try:
        return os.readlink(path)
    except OSError:
        return b""


def _command(process: str) -> str:
    try:
        with open(f"/proc/{process}/cmdline", "rb") as file:
            words = file.read(4096).rstrip(b"\0").split(b"\0")
    except OSError:
        return "?"
    return os.fsdecode(b" ".join(words))[:120] or "?"
