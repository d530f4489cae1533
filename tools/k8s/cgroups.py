"""A node's control groups: one in every hierarchy of the machine, below which the kubelet makes those of the pods."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_END_TIMEOUT_S = 10.0


def make(name: str) -> None:
    """Makes the group in every hierarchy: each of v1's, and v2's."""
    for root in _hierarchies():
        group = root / name
        group.mkdir(exist_ok=True)
        # A group of cpuset accepts no process before it has processors and memory.
        for knob in ("cpuset.cpus", "cpuset.mems"):
            if root.name == "cpuset" and (group / knob).exists():
                (group / knob).write_text((root / knob).read_text())


def remove(name: str) -> None:
    """Removes the group and all groups below it; waits until killed processes in it have ended."""
    end = time.monotonic() + _END_TIMEOUT_S
    for root in _hierarchies():
        while (root / name).exists():
            for folder, _, _ in os.walk(root / name, topdown=False):
                try:
                    os.rmdir(folder)
                except FileNotFoundError:
                    pass
                except OSError as error:
                    if error.errno != errno.EBUSY or time.monotonic() > end:
                        raise
                    time.sleep(0.02)


def named(prefix: str) -> set[str]:
    """The groups whose names have this prefix."""
    return {path.name for root in _hierarchies() for path in root.glob(f"{prefix}*")}


def _hierarchies() -> Iterator[Path]:
    if (_ROOT / "cgroup.procs").exists():
        yield _ROOT
    with contextlib.suppress(FileNotFoundError):
        for path in sorted(_ROOT.iterdir()):
            if os.path.ismount(path) and (path / "cgroup.procs").exists():
                yield path
