"""A memory cgroup with a limit, at which the kernel kills."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from fresh_script import wait_for_end

from monarch.actor import BootstrapCommand


class Cgroup:
    """A memory cgroup with a limit; `OSError` if none can be made."""

    def __init__(self, megabytes: int) -> None:
        first = next((m for m in map(self._mount, _mounts()) if m is not None), None)
        if first is None:
            raise OSError("no memory controller is mounted")
        folder, root, two = first
        # The group is beside this process's group if groups with processes cannot have children with limits, else inside of it.
        ours = "/" if two else _own_memory_cgroup()
        self.name = f"{ours.rstrip('/')}/monarch-test-{os.getpid()}"
        self.folder = folder / os.path.relpath(self.name, root)
        self.folder.mkdir()
        try:
            limits = ["memory.max", "memory.swap.max"] if two else ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"]
            for i, limit in enumerate(limits):
                path = self.folder / limit
                if i == 0 or path.exists():
                    path.write_text("0" if two and i else str(megabytes << 20))
        except OSError:
            self.folder.rmdir()
            raise

    @staticmethod
    def _mount(line: str) -> tuple[Path, str, bool] | None:
        place, _, kind = line.partition(" - ")
        root, at = place.split()[3:5]
        name, _, options = kind.split()[:3]
        if name == "cgroup" and "memory" in options.split(","):
            return Path(at), root, False
        if name == "cgroup2" and "memory" in (Path(at) / "cgroup.subtree_control").read_text().split():
            return Path(at), root, True
        return None

    def pids(self) -> list[int]:
        """The processes in the group."""
        return [int(word) for word in (self.folder / "cgroup.procs").read_text().split()]

    def take(self, pid: int) -> None:
        """Moves a process into the group; its later children belong to it too."""
        (self.folder / "cgroup.procs").write_text(str(pid))

    def enter_by(self, script: Path) -> BootstrapCommand:
        """The command of a proc that moves itself into the group."""
        script.write_text(f'#!/bin/sh\necho $$ > {self.folder}/cgroup.procs\nexec {sys.executable} "$@"\n')
        script.chmod(0o755)
        return BootstrapCommand(str(script))


def _mounts() -> list[str]:
    return Path("/proc/self/mountinfo").read_text().splitlines()


def _own_memory_cgroup() -> str:
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    return next(path for _, controllers, path in lines if "memory" in controllers.split(","))


@contextlib.contextmanager
def memory_cgroup(megabytes: int) -> Generator[Cgroup]:
    """A group that ends with the block, with all its processes. Skips the test if none can be made."""
    try:
        made = Cgroup(megabytes)
    except OSError as e:
        pytest.skip(f"cannot make a memory cgroup with a limit here: {e}")
    yield made
    for pid in made.pids():
        os.kill(pid, signal.SIGKILL)
        wait_for_end(pid)
    made.folder.rmdir()
