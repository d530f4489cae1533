"""How a run asks its job for hosts in the place of lost ones."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from monarch.actor import HostMesh
    from monarch.job._job.job_state import JobState
    from monarch.job._job.trait import JobTrait

Healer = Callable[[], Awaitable["HostMesh | None"]]
# Seconds that a job may take.
_HEAL_S = 600.0


def healer(job: JobTrait) -> Healer:
    """Brings lost hosts of the job back; its result is the first mesh then, None where hosts are still missing."""

    async def healed() -> HostMesh | None:
        report = await asyncio.to_thread(job.heal, timeout=_HEAL_S)
        return None if report.missing else await asyncio.to_thread(lambda: first_mesh(job.state(cached_path=None)))

    return healed


def first_mesh(state: JobState) -> HostMesh:
    return state[next(iter(state))]
