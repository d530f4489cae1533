"""What this host is, and what its processes use: from /proc, without a library."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")


def memory_bytes() -> int:
    """Memory of this host in bytes."""
    return os.sysconf("SC_PHYS_PAGES") * _PAGE


def cpus() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0))


class Use(NamedTuple):
    """Of a process, or of the host. `ticks` is processor time since the start, in clock ticks."""

    ticks: int
    rss_bytes: int
    threads: int
    fds: int


class Memory(NamedTuple):
    """Of a process, in bytes."""

    rss: int
    vm: int
    shared: int
    swap: int
    # The largest `rss` so far.
    peak: int


def process_use(pid: int) -> Use | None:
    """None for a process that has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        fds = len(os.listdir(f"/proc/{pid}/fd"))
    except (OSError, ValueError):
        return None
    # The fields of proc(5), counted from the state of the process, field 3.
    return Use(int(fields[11]) + int(fields[12]), int(fields[21]) * _PAGE, int(fields[17]), fds)


def process_memory(pid: int) -> Memory | None:
    """None for a process that has ended."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            lines = dict(line.split(":", 1) for line in file if ":" in line)
    except OSError:
        return None

    def size(name: str) -> int:
        return int(lines[name].split()[0]) * 1024 if name in lines else 0

    return Memory(size("VmRSS"), size("VmSize"), size("RssFile") + size("RssShmem"), size("VmSwap"), size("VmHWM"))


def host_use() -> Use:
    """Of the whole host: time of all processors, memory that is not available, threads and open files of all processes."""
    with open("/proc/stat", encoding="ascii") as file:
        times = [int(word) for word in file.readline().split()[1:]]
    with open("/proc/meminfo", encoding="ascii") as file:
        memory = {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in file)}
    with open("/proc/loadavg", encoding="ascii") as file:
        threads = int(file.read().split()[3].partition("/")[2])
    with open("/proc/sys/fs/file-nr", encoding="ascii") as file:
        fds = int(file.read().split()[0])
    # user, nice, system, irq, softirq, steal: all except idle and iowait.
    busy = sum(times[:3]) + sum(times[5:8])
    return Use(busy, memory["MemTotal"] - memory.get("MemAvailable", memory["MemFree"]), threads, fds)


class Sampler:
    """Rows of `resources`: processor time is that since the last row of the same process."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._before: dict[int, tuple[int, float]] = {}

    def rows(self, procs: dict[int, str], now: float) -> list[dict[str, Any]]:
        """`procs` has names of procs by the number of their process; `now` is in seconds since the epoch."""
        found: list[dict[str, Any]] = []
        used = {0: host_use(), **{pid: use for pid in procs if (use := process_use(pid)) is not None}}
        for pid, use in used.items():
            ticks, at = self._before.get(pid, (use.ticks, now))
            passed = now - at
            found.append(
                {
                    "timestamp_us": int(now * 1e6),
                    "host": self._host,
                    "proc": procs.get(pid),
                    "cpu_pct": 100.0 * (use.ticks - ticks) / _TICKS / passed if passed > 0 else 0.0,
                    "rss_bytes": use.rss_bytes,
                    "threads": use.threads,
                    "fds": use.fds,
                }
            )
        self._before = {pid: (use.ticks, now) for pid, use in used.items()}
        return found
