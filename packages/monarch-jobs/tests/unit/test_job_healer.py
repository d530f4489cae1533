"""How code that has hosts of a job has lost ones replaced, without knowing the job."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from monarch.actor import HostMesh, attach_to_workers
from monarch.extension.mesh import HealedHosts, healer_of
from monarch.job import HealReport, HostStatus, JobEndedError, JobError, JobState
from monarch.job._job.healer import Healing


def mesh(name: str, size: int = 2) -> HostMesh:
    """Handles alone: no process listens there."""
    return attach_to_workers(workers=[f"ipc:///nowhere/{name}{rank}" for rank in range(size)])


class FakeJob:
    """A job with the meshes `a` and `b`; its lost hosts are at the places `missing`."""

    apply_id: str | None = "1"
    _title = "fake job 1"

    def __init__(self, *missing: tuple[str, int]) -> None:
        self.missing = [HostStatus(mesh, rank, "", "lost", "", "") for mesh, rank in missing]
        self.limits: list[float | None] = []
        self.lock = threading.Lock()
        self.first, self.next = (JobState({"a": mesh("a"), "b": mesh("b")}) for _ in range(2))
        Healing(self, self.lock, lambda: self.next).set(self.first)

    def heal(self, *, timeout: float | None = None) -> HealReport:
        assert self.lock.locked()
        self.limits.append(timeout)
        return HealReport([], [], self.missing)

    def healed(self, name: str = "a", seconds: float = 7.0) -> HealedHosts:
        heal: Any = healer_of(self.first[name])
        return heal(seconds)


@pytest.mark.parametrize(
    ("missing", "ranks"), [([], set()), ([("b", 1)], set()), ([("a", 1)], {1}), ([("a", 0), ("a", 1), ("b", 0)], {0, 1})]
)
def test_hosts_of_the_mesh_count(missing: Any, ranks: set[int]) -> None:
    job = FakeJob(*missing)
    why = "; ".join(f"a[{rank}] is lost: no reason given" for rank in sorted(ranks))
    assert job.healed() == HealedHosts(job.next.a, frozenset(ranks), why)
    [limit] = job.limits
    assert limit is not None and 0 < limit <= 7.0
    assert not job.lock.locked()


def test_job_that_another_run_is_healing() -> None:
    job = FakeJob()
    with job.lock, pytest.raises(JobError, match="fake job 1: is not healed: another run is healing it"):
        job.healed(seconds=0.0)
    assert job.limits == []


@pytest.mark.parametrize("apply_id", [None, "2"])
def test_mesh_of_an_allocation_that_has_ended(apply_id: str | None) -> None:
    job = FakeJob()
    job.apply_id = apply_id
    with pytest.raises(JobEndedError, match="has ended"):
        job.healed()
    assert job.limits == []


def test_job_that_ends_while_it_is_healed() -> None:
    job = FakeJob()

    def ends(*, timeout: float | None = None) -> HealReport:
        job.apply_id = None
        return HealReport([], [], [])

    job.heal = ends  # type: ignore[method-assign]
    with pytest.raises(JobEndedError, match="has ended"):
        job.healed()
