"""One look at a job, and what healing did."""

from __future__ import annotations

from typing import Literal, NamedTuple

Phase = Literal["none", "pending", "running", "ended", "unknown"]
HostPhase = Literal["waiting", "joined", "lost"]


class HostStatus(NamedTuple):
    """A host of a job: `name` is the machine's, empty where it is not known yet; `detail` its last words."""

    mesh: str
    rank: int
    name: str
    phase: HostPhase
    address: str | None
    detail: str


class JobStatus(NamedTuple):
    """`phase` as the scheduler has it, `detail` the reason that it gives, `hosts` in the order of the meshes."""

    phase: Phase
    detail: str
    hosts: list[HostStatus]


class HealReport(NamedTuple):
    """What `heal` did with the lost hosts: started again in place, replaced by others, or nothing could be done."""

    restarted: list[HostStatus]
    replaced: list[HostStatus]
    missing: list[HostStatus]


for _public in (HostStatus, JobStatus, HealReport):
    _public.__module__ = "monarch.job"
