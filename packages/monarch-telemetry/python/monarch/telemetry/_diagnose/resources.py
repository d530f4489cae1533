"""Checks of the resources that processes have reported about themselves, on any host of the job: file systems, descriptors, cgroups."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

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
