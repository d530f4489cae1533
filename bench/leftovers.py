"""The leftovers of a run on the machine: processes, unix sockets, shared memory, files in its temporary folder.

A variable in the environment of a run, which its processes inherit, and a temporary folder of its own, where its sockets are too,
distinguish it from everything else on the machine: abstract sockets end with their processes. Shared memory carries no such mark:
new memory with Monarch's name counts, so no other program of Monarch should make any meanwhile.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import uuid
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.marked_processes import marked_processes

VARIABLE = "MONARCH_BENCH_RUN"


class Leftovers:
    """Records the state before a run. `environment` is for the run, `look()` returns its leftovers, `close()` removes its folder."""

    def __init__(self) -> None:
        self.mark = uuid.uuid4().hex
        self.folder = Path(tempfile.mkdtemp(prefix="mb-"))
        self.before = _shared_memory()
        places = dict.fromkeys(("TMPDIR", "XDG_RUNTIME_DIR"), str(self.folder))
        self.environment = {**os.environ, VARIABLE: self.mark, **places}

    def look(self) -> list[str]:
        """One line for each leftover; empty if there is none."""
        left = [f"process {pid}: {command}" for pid, command in self.processes()]
        left += sorted(_sockets(self.folder) | (_shared_memory() - self.before))
        left += [f"file {path.relative_to(self.folder)}" for path in sorted(self.folder.rglob("*"))]
        return left

    def processes(self) -> list[tuple[int, str]]:
        """Pid and command line of every process that carries the mark, except ended ones that wait to be reaped."""
        return marked_processes(VARIABLE, self.mark)

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def _sockets(folder: Path) -> set[str]:
    """Unix sockets that are files below this folder, also removed ones."""
    lines = Path("/proc/net/unix").read_text().splitlines()[1:]
    names = {fields[7] for fields in (line.split(maxsplit=7) for line in lines) if len(fields) == 8}
    return {f"socket {name}" for name in names if name.startswith(f"{folder}/")}


def _shared_memory() -> set[str]:
    return {f"shared memory {name}" for name in os.listdir("/dev/shm") if name.startswith("monarch")}
