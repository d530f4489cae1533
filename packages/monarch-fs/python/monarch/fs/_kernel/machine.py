"""Which machine and which mount namespace a process is in: two processes with the same ones see the same files at the same paths."""

from __future__ import annotations

import os


def place_here() -> str:
    """This machine and its mount namespace."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read().strip()
    return f"{boot} {os.readlink('/proc/self/ns/mnt')}"
