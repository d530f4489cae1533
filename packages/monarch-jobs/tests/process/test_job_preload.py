"""`job.preload`: all procs of a job find the modules imported, also through its state file."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from monarch.actor import Actor, HostMesh, endpoint
from monarch.job import ProcessJob

# A module of the standard library that neither Monarch nor pytest imports.
MODULE = "colorsys"


class Probe(Actor):
    @endpoint
    def has(self, name: str) -> bool:
        return name in sys.modules


def has_module(hosts: HostMesh) -> bool:
    with hosts.spawn_procs({"procs": 1}) as procs:
        return all(procs.spawn("probe", Probe).has.call(MODULE).get().values())


def test_procs_of_a_job_have_its_modules(tmp_path: Path) -> None:
    path = str(tmp_path / "job.json")
    job = ProcessJob({"trainers": 1}).preload([MODULE])
    try:
        trainers = job.state(path).trainers
        assert trainers.preload == [MODULE]
        assert has_module(trainers) and has_module(trainers.slice(hosts=0))
        # The same allocation, as another script configures it.
        assert not has_module(ProcessJob({"trainers": 1}).state(path).trainers)
        assert has_module(ProcessJob({"trainers": 1}).preload([MODULE]).state(path).trainers)
    finally:
        job.kill()


def test_wrong_modules_are_refused() -> None:
    with pytest.raises(TypeError, match="expected a list of names"):
        ProcessJob({"trainers": 1}).preload("torch")
