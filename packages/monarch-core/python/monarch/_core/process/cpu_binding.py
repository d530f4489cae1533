"""Binding a process to processors and memory nodes, by system calls.

The syntax is that of numactl and taskset: `0-3,8`.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_MPOL_BIND = 2
# The number of the system call set_mempolicy on x86-64 and aarch64.
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}
# Kernels are built for 8,192 processors at most.
_LARGEST = 0xFFFF
_NODES = "/sys/devices/system/node"


def parse_cpus(text: str) -> set[int]:
    """The numbers in `0-3,8`; `ValueError` for anything else."""
    found: set[int] = set()
    for part in str(text).split(","):
        first, dash, last = part.strip().partition("-")
        try:
            low = int(first)
            high = int(last) if dash else low
        except ValueError:
            raise ValueError(f"invalid list of processors or nodes: {text!r}") from None
        if low < 0 or high < low or high > _LARGEST:
            raise ValueError(f"invalid list of processors or nodes: {text!r}")
        found.update(range(low, high + 1))
    return found


def node_cpus(nodes: Iterable[int]) -> set[int]:
    """The processors of memory nodes; `OSError` if one does not exist."""
    cpus: set[int] = set()
    for node in nodes:
        with open(f"{_NODES}/node{node}/cpulist") as f:
            text = f.read().strip()
        if text:
            cpus |= parse_cpus(text)
    return cpus


def visible_nodes() -> list[int]:
    try:
        return sorted(int(name[4:]) for name in os.listdir(_NODES) if name.startswith("node") and name[4:].isdigit())
    except OSError:
        return []


def bind(options: dict[str, str]) -> None:
    """Binds this process. `OSError` if the kernel refuses. Other systems than Linux ignore it."""
    if not sys.platform.startswith("linux"):
        return
    numa = {k: parse_cpus(v) for k, v in options.items() if k != "cpus"}
    if numa and len(visible_nodes()) > 1:
        cpus = numa.get("physcpubind") or (node_cpus(numa["cpunodebind"]) if "cpunodebind" in numa else None)
        if cpus:
            os.sched_setaffinity(0, cpus)
        if "membind" in numa:
            _bind_memory(numa["membind"])
    elif "cpus" in options:
        os.sched_setaffinity(0, parse_cpus(options["cpus"]))


def _bind_memory(nodes: set[int]) -> None:
    import ctypes

    number = _SET_MEMPOLICY.get(os.uname().machine)
    if number is None:
        raise OSError(f"membind is not supported on {os.uname().machine}")
    bits = 64 * (max(nodes) // 64 + 1)
    mask = sum(1 << n for n in nodes).to_bytes(bits // 8, "little")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number, _MPOL_BIND, ctypes.create_string_buffer(mask, len(mask)), bits + 1) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"membind {sorted(nodes)}: {os.strerror(code)}")
