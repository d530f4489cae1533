"""A limit on the tasks of one process, by a pids cgroup: RLIMIT_NPROC does not bind root."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")


def controllers() -> Path | None:
    """The folder for new groups; None if this user cannot make any."""
    for folder in (ROOT / "pids", ROOT):
        named = (folder / "cgroup.controllers").read_text() if (folder / "cgroup.controllers").exists() else ""
        if (folder.name == "pids" and folder.is_dir() or "pids" in named.split()) and os.access(folder, os.W_OK):
            return folder
    return None


class TaskLimit:
    """Limits the threads of the process, while the block is entered, to its present ones and `spare` more."""

    def __init__(self, pid: int, spare: int = 0) -> None:
        self.pid = pid
        self.spare = spare
        folder = controllers()
        assert folder is not None
        self.before = folder
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            _, names, path = line.split(":", 2)
            if names == ("pids" if folder.name == "pids" else ""):
                self.before = folder / path.removeprefix("/")
        self.group = folder / f"monarch-chaos-{secrets.token_hex(4)}"

    def __enter__(self) -> TaskLimit:
        self.group.mkdir()
        with contextlib.suppress(OSError):  # the process may be gone
            (self.group / "cgroup.procs").write_text(str(self.pid))
            tasks = int((self.group / "pids.current").read_text())
            (self.group / "pids.max").write_text(str(tasks + self.spare))
        return self

    def __exit__(self, *_: object) -> None:
        (self.group / "pids.max").write_text("max")
        # The present members are moved: the process may have been replaced by its children.
        for pid in (self.group / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                (self.before / "cgroup.procs").write_text(pid)
        with contextlib.suppress(OSError):  # a process that ends just now is still in it
            self.group.rmdir()
