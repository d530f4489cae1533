"""Brings lost hosts of a `LauncherJob` back: started again where they were, else elsewhere, else told as missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monarch.job import _joining
from monarch.job._join import Host
from monarch.job._status import HealReport, HostStatus
from monarch.job.errors import JobEndedError, JoinTimeoutError

if TYPE_CHECKING:
    from monarch.job._launched import LauncherJob


def heal(job: LauncherJob, timeout: float | None) -> HealReport:
    """`timeout` bounds the wait for those that were started again; by default the job's own time for joining does."""
    allocation = _joining.Allocation(job)
    before = _joining.poll(allocation)
    if before.phase == "ended":
        raise _joining.ended(allocation, before)
    lost = {Host(host.mesh, host.rank): host for host in before.hosts if host.phase == "lost"}
    if not lost:
        return HealReport([], [], [])
    again = [Host(*place) for place in allocation.launcher.relaunch(allocation.ids, [(host.mesh, host.rank) for host in lost])]
    # Handles that exist keep failing for the lost ranks; the next `state()` makes new ones.
    job.connection_ = None
    try:
        for _ in _joining.until_joined(allocation, again, job._join_timeout() if timeout is None else timeout):
            pass
    except JoinTimeoutError:
        pass  # they are told as missing
    except JobEndedError:
        if not job.active:
            raise
    _save(job)
    after = {Host(host.mesh, host.rank): host for host in _joining.poll(allocation).hosts}
    restarted: list[HostStatus] = []
    replaced: list[HostStatus] = []
    missing: list[HostStatus] = []
    for place, old in lost.items():
        new = after[place]
        kind = missing if place not in again or new.phase != "joined" else restarted if new.name == old.name else replaced
        kind.append(new)
    return HealReport(restarted, replaced, missing)


def _save(job: LauncherJob) -> None:
    from monarch.job import _store

    if job._life.path is not None:
        _store.write(job._life.path, job)
