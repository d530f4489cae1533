"""Brings lost hosts of a `LauncherJob` back: started again where they were, else elsewhere, else told as missing.

A host is lost as soon as the scheduler or the runtime of this process says so. A worker that only the runtime has lost may be alive, as
after a network that was away for long; it cannot join the same client again, so another one takes its place.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from monarch.job import _allocation_lock, _joining, _lifecycle
from monarch.job._join import Host
from monarch.job._machine.commands import time_left, time_limit
from monarch.job._status import HealReport, HostStatus
from monarch.job.errors import JobEndedError, JobError, JoinTimeoutError

if TYPE_CHECKING:
    from monarch.job._launched import LauncherJob


# Of the time that is left: what a host without an answer may cost when it is looked at, and when its worker is started again.
_LOOK_SHARE, _RELAUNCH_SHARE = 0.3, 0.6
# And the wait for workers: the rest is for the last look at the scheduler.
_WAIT_SHARE = 0.85


def heal(job: LauncherJob, timeout: float | None) -> HealReport:
    """`timeout` bounds all of it; by default the job's own time for joining bounds the wait for workers that were started again."""
    with time_limit(timeout):
        return _heal(job, timeout)


def _heal(job: LauncherJob, timeout: float | None) -> HealReport:
    deadline = None if timeout is None else time.monotonic() + timeout

    def left(default: float) -> float:
        return default if deadline is None else max(deadline - time.monotonic(), 0.0)

    with _allocation_lock.held(job, left(_allocation_lock.TIMEOUT_S)) as is_held:
        if not is_held:
            raise JobError("is not healed: another process is changing it", title=job._title)
        _lifecycle.refresh(job)
        allocation = _joining.Allocation(job)
        with time_limit(_share(timeout, _LOOK_SHARE)):
            before = _joining.look(job, allocation)
        if before.phase == "ended":
            raise _joining.ended(allocation, before)
        lost = {Host(host.mesh, host.rank): host for host in before.hosts if host.phase == "lost"}
        if not lost:
            return HealReport([], [], [])
        with time_limit(_share(timeout, _RELAUNCH_SHARE)):
            again = [Host(*place) for place in allocation.launcher.relaunch(allocation.ids, [(host.mesh, host.rank) for host in lost])]
        # Before the wait: another process has to know of them, whatever comes.
        _save(job)
    # Handles that exist keep failing for the lost ranks; the next `state()` makes new ones.
    if job.attached_ is not None and again:
        job.attached_.update(dict.fromkeys(again, ""))
        job.is_stale_ = True
    joined: dict[Host, str] = {}
    try:
        for place, address in _joining.until_joined(
            allocation, again, job._join_timeout() if deadline is None else _WAIT_SHARE * left(0.0)
        ):
            joined[place] = address
    except JoinTimeoutError:
        pass  # they are told as missing
    except JobEndedError:
        if not job.active:
            raise
    after = {Host(host.mesh, host.rank): host for host in allocation.seen.hosts}
    restarted: list[HostStatus] = []
    replaced: list[HostStatus] = []
    missing: list[HostStatus] = []
    for place, old in lost.items():
        new = after[place]
        if place not in again:
            missing.append(new if new.phase == "lost" else old)
        elif place not in joined:
            # The last look may have been cut short by the end of the time, and knows nothing then.
            detail = (new.detail if new.name else "") or "its worker was started again and does not listen"
            missing.append(new._replace(name=new.name or old.name, phase="lost", detail=detail))
        else:
            kind = restarted if new.name == old.name else replaced
            kind.append(new._replace(phase="joined", address=joined[place], detail=""))
    return HealReport(restarted, replaced, missing)


def _share(timeout: float | None, share: float) -> float | None:
    return None if timeout is None else share * time_left(timeout)


def _save(job: LauncherJob) -> None:
    from monarch.job import _store

    record = job._life.inside or job
    if record._life.path is not None:
        _store.write(record._life.path, record)
