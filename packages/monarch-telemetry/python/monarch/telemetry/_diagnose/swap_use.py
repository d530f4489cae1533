"""Memory in swap, and pages that are read from disks, of processes of this machine between two samples.

A thread that waits for a page may keep the GIL: its process answers nothing then, and the kernel alone knows the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from monarch.telemetry._diagnose.snapshot import Check, Proc

# The index in /proc/PID/stat, after the name.
_MAJOR_FAULTS = 9


class SwapSample(NamedTuple):
    """A process: bytes in swap, and the pages that were read from a disk so far."""

    swapped: int
    faults: int


def swap_samples(pids: Iterable[int]) -> dict[int, SwapSample]:
    """The samples of the processes that can be read."""
    found: dict[int, SwapSample] = {}
    for pid in pids:
        try:
            with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
                swapped = next((int(line.split()[1]) << 10 for line in file if line.startswith("VmSwap:")), 0)
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                faults = int(file.read().rpartition(")")[2].split()[_MAJOR_FAULTS])
        except (OSError, ValueError, IndexError):  # it has ended
            continue
        found[pid] = SwapSample(swapped, faults)
    return found


def swap_checks(procs: Iterable[Proc], before: Mapping[int, SwapSample], now: Mapping[int, SwapSample], seconds: float) -> Iterator[Check]:
    """Bytes in swap, and pages that were read in a second, of each process."""
    for proc in procs:
        first, last = before.get(proc.pid), now.get(proc.pid)
        if first is not None and last is not None and seconds > 0:
            path = f"/proc/{proc.pid}"
            yield Check("swapped", proc.host, proc.name, last.swapped, 0.0, (proc.uid,), f"{path}/status")
            yield Check("swap_reads", proc.host, proc.name, (last.faults - first.faults) / seconds, 0.0, (proc.uid,), f"{path}/stat")
