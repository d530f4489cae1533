"""Checks of the resources of processes: those that they report themselves, on any host, their processor time, and their memory in swap.

A thread that waits for a page of swap may keep the GIL: its process answers nothing then, and the kernel alone knows the reason.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, cast

from monarch.telemetry._diagnose import forms
from monarch.telemetry._diagnose.inspected import Looked, stack_rows
from monarch.telemetry._diagnose.snapshot import Check, Proc, ranked

# The seconds after which a file system that has not answered a call hangs.
HANGS = 1.0


def resource_checks(procs: Iterable[Proc]) -> tuple[Check, ...]:
    """The checks, each file system and cgroup of a host once. A process whose report has another form has none."""
    shared: dict[tuple[object, ...], Check] = {}
    own: list[Check] = []
    for proc in procs:
        try:
            own += _descriptors(proc)
            for key, check in (*_file_systems(proc), *_cgroups(proc)):
                known = shared.get(key)
                shared[key] = (
                    check if known is None else known._replace(procs=(*known.procs, *check.procs), value=max(known.value, check.value))
                )
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError):  # of another release
            continue
    return (*shared.values(), *own)


def named(proc: Proc) -> str:
    return "the client" if proc.mesh is None else f"{ranked(proc.mesh, proc.rank, proc.size)} (pid {proc.pid})"


def _descriptors(proc: Proc) -> Iterator[Check]:
    found: Mapping[str, Any] = proc.resources.get("descriptors", {})
    if found and found["limit"] > 0:
        yield Check("descriptors", proc.host, named(proc), found["number"], found["limit"], (proc.uid,), f"/proc/{proc.pid}/fd")


def _file_systems(proc: Proc) -> Iterator[tuple[tuple[object, ...], Check]]:
    for one in proc.resources.get("file_systems", ()):
        folder, uids = str(one["folder"]), (proc.uid,)
        path = f"/proc/{proc.pid}/root{folder}"
        if "hangs" in one:
            if one["hangs"] >= HANGS:
                yield ("hangs", proc.host, folder), Check("hangs", proc.host, folder, float(one["hangs"]), HANGS, uids, path)
            continue
        key, size = (proc.host, one["device"]), int(one["size"])
        if one["read_only"] and not one["is_temporary"]:
            # Code and data are often mounted read-only.
            continue
        if one["read_only"]:
            yield ("read_only", *key), Check("read_only", proc.host, folder, 1.0, 0.0, uids, path)
        elif size:
            yield ("file_system", *key), Check("file_system", proc.host, folder, size - int(one["free"]), size, uids, path)
            if one["files"]:
                used = int(one["files"]) - int(one["free_files"])
                yield ("inodes", *key), Check("inodes", proc.host, folder, used, int(one["files"]), uids, path)


def _cgroups(proc: Proc) -> Iterator[tuple[tuple[object, ...], Check]]:
    groups: Mapping[str, Mapping[str, Any]] = proc.resources.get("cgroups", {})
    before: Mapping[str, Mapping[str, Any]] = proc.resources_before.get("cgroups", {})
    for name, one in groups.items():
        path = str(one["path"])
        # Files that the kernel keeps in memory are given back before a limit is felt.
        used = int(one["used"]) - int(one.get("cache", 0))
        yield (name, proc.host, path), Check(f"{name}_limit", proc.host, path, used, int(one["limit"]), (proc.uid,), path)
        earlier = before.get(name, {})
        if earlier.get("path") == path and "failures" in one:
            more = int(one["failures"]) - int(earlier.get("failures", one["failures"]))
            yield (f"{name}_failures", proc.host, path), Check(f"{name}_failures", proc.host, path, more, 0, (proc.uid,), path)


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


_SOURCE = "/proc/PID/schedstat"


def processor_checks(procs: Iterable[Proc], before: Looked, now: Looked) -> Iterator[Check]:
    """The parts of the time in which each process had a processor and waited for one, and in which each cgroup was held back."""
    first, last = _times(before), _times(now)
    groups: dict[tuple[str, str], list[Check]] = {}
    for proc in procs:
        earlier, later = first.get(proc.uid), last.get(proc.uid)
        if earlier is None or later is None or later["at"] <= earlier["at"]:
            continue

        def part(name: str, earlier: Mapping[str, Any] = earlier, later: Mapping[str, Any] = later) -> float:
            return (later[name] - earlier[name]) / 1e9 / (later["at"] - earlier["at"])

        yield Check("processor", proc.host, proc.name, part("used"), 1.0, (proc.uid,), _SOURCE)
        yield Check("run_queue", proc.host, proc.name, part("waited"), 1.0, (proc.uid,), _SOURCE)
        group = str(later.get("group") or "")
        if group and group == earlier.get("group"):
            held = Check("held_back", proc.host, os.path.dirname(group), part("held_back"), 1.0, (proc.uid,), group)
            groups.setdefault((proc.host, group), []).append(held)
    for members in groups.values():
        # Each process of a group was looked at at a moment of its own.
        yield members[0]._replace(procs=tuple(uid for one in members for uid in one.procs))


def _times(looked: Looked) -> dict[str, Mapping[str, Any]]:
    """The counters of each process; an agent of another release gives none."""
    rows = ((str(row["uid"]), row.get("times")) for row in stack_rows(looked))
    return {uid: times for uid, times in rows if isinstance(times, dict) and forms.fits(cast("object", times), forms.TIMES)}
