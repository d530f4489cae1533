"""The hooks of a job, for the rest of the package: users and backends see no public names for them.

`JobTrait` (`_job/trait.py`) and its subclasses define what each one does.
"""

from __future__ import annotations

from operator import attrgetter, methodcaller
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from monarch.job._job.job_state import JobState
    from monarch.job._job.launcher import HealReport, JobStatus, LogFile


class Job(Protocol):
    """A job, as far as the modules below `JobTrait` need it."""

    kind: str

    @property
    def apply_id(self) -> str | None: ...
    def heal(self, *, timeout: float | None = None) -> HealReport: ...


create: Callable[[Job], Callable[[str | None], None]] = attrgetter("_create")
state: Callable[[Job], JobState] = methodcaller("_state")
surround: Callable[[Job], JobState] = methodcaller("_surround")
kill: Callable[[Job], None] = methodcaller("_kill")
poll: Callable[[Job], JobStatus] = methodcaller("_poll")
heal: Callable[[Job], Callable[[float | None], HealReport]] = attrgetter("_heal")
take_over: Callable[[Job], Callable[[Job], None]] = attrgetter("_take_over")
sizes: Callable[[Job], dict[str, int]] = methodcaller("_sizes")
fetch_logs: Callable[[Job], list[LogFile]] = methodcaller("_fetch_logs")
stop_work: Callable[[Job], None] = methodcaller("_stop_work")
troubles: Callable[[Job], list[dict[str, Any]]] = methodcaller("_troubles")
where: Callable[[Job], str] = methodcaller("_where")
dump: Callable[[Job], dict[str, Any]] = methodcaller("_dump")
load: Callable[[Job], Callable[[dict[str, Any]], None]] = attrgetter("_load")
needs_kill_at_exit: Callable[[Job], bool] = methodcaller("_needs_kill_at_exit")
title: Callable[[Job], str] = attrgetter("_title")


def kind_name(job: Job) -> str:
    """The name of the job's kind in texts."""
    return job.kind or type(job).__name__
