"""Brings lost hosts of a job back: started again where they were, else elsewhere, else reported as missing.

A host is lost as soon as the scheduler or the runtime of this process reports it. The scheduler is asked again all the while that a worker
is waited for: one that it has as lost is missing, and is not waited for any longer. A worker that only the runtime has lost may be alive,
as after a network that was away for long: another one takes its place. Where the gateway of this process is lost, so is all behind it:
hosts that the scheduler has as well are attached again, through another gateway.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from monarch.job._files import credentials
from monarch.job._job import hooks
from monarch.job._job.allocation import Allocation
from monarch.job._job.launcher import MOST_NAMED, HealReport, Host, HostStatus, JobStatus, described
from monarch.job._job.watch import until_joined
from monarch.job._machine.commands import time_left, time_limit
from monarch.job.errors import JobEndedError, JobError, JoinTimeoutError

# Fractions of the remaining time: the most that a host without an answer may cost in the query, and in the restart of its worker.
_LOOK_SHARE, _RELAUNCH_SHARE = 0.3, 0.6
# The fraction for the wait for workers: the rest is for the last query of the scheduler.
_WAIT_SHARE = 0.85


class Healable(hooks.Job, Protocol):
    """What healing needs of a job."""

    @property
    def active(self) -> bool: ...
    @property
    def unreached_(self) -> frozenset[Host]: ...


class HealSteps(NamedTuple):
    """The steps of healing that a job does itself. `refresh` takes over what another process has done with it."""

    refresh: Callable[[], bool]
    allocation: Callable[[], Allocation]
    look: Callable[[Allocation], JobStatus]
    replaced: Callable[[Iterable[Host]], None]
    save: Callable[[], None]
    join_timeout: Callable[[], float | None]


def heal(job: Healable, steps: HealSteps, timeout: float | None) -> HealReport:
    """`timeout` bounds all of it; by default the job's own time for joining bounds the wait for workers that were started again."""
    with time_limit(timeout):
        return _heal(job, steps, timeout)


def _heal(job: Healable, steps: HealSteps, timeout: float | None) -> HealReport:
    deadline = None if timeout is None else time.monotonic() + timeout

    def left(default: float) -> float:
        return default if deadline is None else max(deadline - time.monotonic(), 0.0)

    with credentials.lock(job.apply_id, left(credentials.LOCK_TIMEOUT_S)) as is_held:
        if not is_held:
            raise JobError("is not healed: another process is changing it", title=hooks.title(job))
        steps.refresh()
        allocation = steps.allocation()
        with time_limit(_share(timeout, _LOOK_SHARE)):
            before = steps.look(allocation)
        if before.phase == "ended" and not _can_start_again(job, allocation, before):
            raise allocation.ended(before)
        lost = {Host(host.mesh, host.rank): host for host in before.hosts if host.phase == "lost"}
        if not lost:
            return HealReport([], [], [])
        unreached = [place for place in lost if place in job.unreached_]
        ended = [(place.mesh, place.rank) for place in lost if place not in job.unreached_]
        with time_limit(_share(timeout, _RELAUNCH_SHARE)):
            again = [Host(*place) for place in allocation.launcher.relaunch(allocation.ids, ended)] if ended else []
        again += unreached
        # This comes before the wait: another process has to know the new workers in any case.
        steps.save()
    steps.replaced(again)
    joined: dict[Host, str] = {}
    limit = steps.join_timeout() if deadline is None else _WAIT_SHARE * left(0.0)
    line = _waits(hooks.title(job), [lost[place] for place in again], limit)
    try:
        for place, address in until_joined(allocation, again, limit, drops_lost=True, notice_text=line):
            joined[place] = address
    except JoinTimeoutError:
        pass  # these are reported as missing
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
            # The last query may have been cut short by the end of the time, and then has no detail.
            detail = (new.detail if new.name else "") or "its worker was started again and does not listen"
            missing.append(new._replace(name=new.name or old.name, phase="lost", detail=detail))
        else:
            kind = restarted if new.name == old.name else replaced
            kind.append(new._replace(phase="joined", address=joined[place], detail=""))
    return HealReport(restarted, replaced, missing)


def _can_start_again(job: Healable, allocation: Allocation, status: JobStatus) -> bool:
    """Have all workers ended, on machines that no scheduler takes back? A job that was killed has no credentials any more."""
    are_there = getattr(allocation.launcher, "machines_outlive_workers", False) and job.apply_id is not None
    return are_there and bool(status.hosts) and os.path.exists(credentials.secret_path(job.apply_id or ""))


def _waits(title: str, hosts: list[HostStatus], limit: float | None) -> str:
    """One line: which hosts are waited for, why they are lost, and until when."""
    named = [described(host) for host in hosts[:MOST_NAMED]]
    if len(hosts) > MOST_NAMED:
        named.append(f"and {len(hosts) - MOST_NAMED} more")
    until = "" if limit is None else f" until {time.strftime('%H:%M:%S', time.localtime(time.time() + limit))} at most"
    return f"monarch: {title}: {'; '.join(named)}; waits for {'its worker' if len(hosts) == 1 else 'their workers'} to start again{until}"


def _share(timeout: float | None, share: float) -> float | None:
    return None if timeout is None else share * time_left(timeout)
