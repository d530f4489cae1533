"""The titles of a job's processes in `ps`."""

from __future__ import annotations

import os
from pathlib import Path

from monarch.actor import Actor, endpoint
from monarch.job import ProcessJob


class Ancestors(Actor):
    @endpoint
    def titles(self) -> list[list[str]]:
        """The command lines of this process, its zygote and its agent."""
        found: list[list[str]] = []
        pid = os.getpid()
        for _ in range(3):
            found.append(Path(f"/proc/{pid}/cmdline").read_bytes().decode().rstrip("\0").split("\0"))
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        return found


def test_title_names_the_task_of_a_process() -> None:
    job = ProcessJob({"hosts": 1})
    try:
        procs = job.state(cached_path=None).hosts.spawn_procs({"gpus": 1}, name="trainers")
        proc, zygote, agent = procs.spawn("ancestors", Ancestors).titles.call_one().get()
    finally:
        job.kill()
    assert proc == ["monarch-proc", "trainers", "0"]
    assert zygote == ["monarch-zygote"]
    assert agent[:3] == ["monarch", "worker", "--listen"] and "--publish" in agent
