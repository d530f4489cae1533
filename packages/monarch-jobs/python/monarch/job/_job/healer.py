"""How a run asks its job for hosts in the place of lost ones."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from monarch.actor import HostMesh
    from monarch.job._job.job_state import JobState
    from monarch.job._job.trait import JobTrait

Healer = Callable[[float], Awaitable["HostMesh | None"]]


def healer(job: JobTrait) -> Healer:
    """Brings lost hosts of the job back in so many seconds; its result is the first mesh then, None where hosts of it are still missing.

    A host that another process has healed, or whose worker has joined since, is no lost one: the mesh has it.
    """

    def healed(seconds: float) -> HostMesh | None:
        missing = {host.mesh for host in job.heal(timeout=seconds).missing}
        # Handles, which wait for nothing: workers that were started again have new ones.
        state = job.state(cached_path=None)
        return None if next(iter(state)) in missing else first_mesh(state)

    return lambda seconds: asyncio.to_thread(healed, seconds)


def first_mesh(state: JobState) -> HostMesh:
    return state[next(iter(state))]
