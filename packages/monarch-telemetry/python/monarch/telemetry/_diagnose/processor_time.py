"""Processor time of processes of this machine between two samples: time in the run queue, and time that a cgroup held them back."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from monarch.telemetry._diagnose.snapshot import Check, Proc

_GROUPS = "/sys/fs/cgroup"
# Paths of the statistics of a cgroup: of the second version, then of the controller `cpu` of the first.
_STATISTICS = ((f"{_GROUPS}/{{0}}/cpu.stat", "", "throttled_usec", 1000), (f"{_GROUPS}/cpu/{{0}}/cpu.stat", "cpu", "throttled_time", 1))


class Sample(NamedTuple):
    """A process: nanoseconds of its threads on a processor and waiting for one; its cgroup, and nanoseconds that this was held back."""

    used: int
    delay: int
    group: str
    held_back: int


def sampled(pids: Iterable[int]) -> dict[int, Sample]:
    """The samples of the processes that can be read."""
    found: dict[int, Sample] = {}
    groups: dict[str, int] = {}
    for pid in pids:
        times = _times(pid)
        if times is None:
            continue
        path = _statistics_of(pid)
        if path not in groups:
            groups[path] = _held_back(path)
        found[pid] = Sample(*times, path, groups[path])
    return found


def processor_checks(procs: Iterable[Proc], before: Mapping[int, Sample], now: Mapping[int, Sample], seconds: float) -> Iterator[Check]:
    """The parts of the time in which each process had a processor and waited for one, and in which each cgroup was held back."""
    groups: dict[str, list[Proc]] = {}
    for proc in procs:
        first, last = before.get(proc.pid), now.get(proc.pid)
        if first is None or last is None or seconds <= 0:
            continue
        yield Check("processor", proc.host, proc.name, (last.used - first.used) / 1e9 / seconds, 1.0, (proc.uid,), "/proc/PID/schedstat")
        yield Check("run_queue", proc.host, proc.name, (last.delay - first.delay) / 1e9 / seconds, 1.0, (proc.uid,), "/proc/PID/schedstat")
        if last.group and last.group == first.group:
            groups.setdefault(last.group, []).append(proc)
    for group, members in groups.items():
        pid = members[0].pid
        part = (now[pid].held_back - before[pid].held_back) / 1e9 / seconds
        yield Check("held_back", members[0].host, os.path.dirname(group), part, 1.0, tuple(one.uid for one in members), group)


def _times(pid: int) -> tuple[int, int] | None:
    """Nanoseconds of all threads of a process on a processor and in the run queue; None for a process that has ended."""
    used = delay = 0
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/schedstat", encoding="ascii") as file:
                times = file.read().split()
            used, delay = used + int(times[0]), delay + int(times[1])
    except (OSError, ValueError, IndexError):
        return None
    return used, delay


def _statistics_of(pid: int) -> str:
    """The file with the statistics of the cgroup that limits the processor time of a process; empty without one."""
    try:
        with open(f"/proc/{pid}/cgroup", encoding="utf-8", errors="replace") as file:
            groups = dict(line.rstrip("\n").split(":", 2)[1:] for line in file)
    except (OSError, ValueError):
        return ""
    for pattern, controller, _, _ in _STATISTICS:
        group = groups.get(controller)
        path = "" if group is None else pattern.format(group.strip("/"))
        # The root of all groups has no limit.
        if path and group != "/" and os.path.exists(path):
            return path
    return ""


def _held_back(path: str) -> int:
    """Nanoseconds for which a cgroup was held back, over all its processors."""
    try:
        with open(path, encoding="ascii") as file:
            values = dict(line.split() for line in file)
    except (OSError, ValueError):
        return 0
    return next((int(values[name]) * unit for _, _, name, unit in _STATISTICS if name in values), 0)
