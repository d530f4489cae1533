"""The hosts of the current job for `monarch run`: what monarch-spmd asks for by the entry-point group `monarch.run`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from monarch.actor import HostMesh


class CurrentHosts(NamedTuple):
    """The first mesh of a job, and the job's name in texts."""

    hosts: HostMesh
    title: str
    # The directory of ranks on the hosts; None: that of their workers.
    workdir: str | None


def current_hosts() -> CurrentHosts | None:
    """The hosts of the current job of the directory; None without one. `JobEndedError` where it is over."""
    from monarch.job._job import hooks
    from monarch.job._job.healer import first_mesh
    from monarch.job._lookup import attach_current_job
    from monarch.job.errors import NO_JOB, JobError

    try:
        job, state = attach_current_job()
    except JobError as error:
        if error.code == NO_JOB:
            return None
        raise
    # A launch has a directory of its own, and workers on this machine have that of the client.
    return CurrentHosts(first_mesh(state), hooks.title(job), getattr(job, "workspace", None))
