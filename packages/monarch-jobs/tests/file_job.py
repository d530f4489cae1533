"""A scheduler whose allocations are files: what is there is allocated."""

from __future__ import annotations

import os
from pathlib import Path

from monarch.job import JobState, JobStatus, JobTrait, Plan


class FileJob(JobTrait):
    def __init__(self, folder: str, size: int = 1, name: str = "hosts") -> None:
        super().__init__()
        self.folder = str(folder)
        self.size = size
        self.mesh = name

    def can_run(self, spec: JobTrait) -> bool:
        return isinstance(spec, FileJob) and spec.plan() == self.plan()

    def plan(self) -> Plan:
        return Plan("file", f"{self.mesh}: {self.size}\n")

    @property
    def allocation(self) -> Path:
        return Path(self.folder, self.apply_id or "none")

    def _create(self, client_script: str | None) -> None:
        os.makedirs(self.folder, exist_ok=True)
        self.allocation.write_text(client_script or "")

    def _state(self) -> JobState:
        from monarch.actor import this_host

        return JobState({self.mesh: this_host()})

    def _poll(self) -> JobStatus:
        return JobStatus("running", "", []) if self.allocation.exists() else JobStatus("ended", "its file is gone", [])

    def _kill(self) -> None:
        self.allocation.unlink(missing_ok=True)

    def _sizes(self) -> dict[str, int]:
        return {self.mesh: self.size}


def allocations(folder: str) -> list[str]:
    return sorted(os.listdir(folder)) if os.path.isdir(folder) else []
