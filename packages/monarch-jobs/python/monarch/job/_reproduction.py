"""Local reproduction: the same meshes as processes of this machine, so that a failing program runs here without edits."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from monarch.job._trait import JobTrait

SHRINK = "MONARCH_JOB_SHRINK"


def as_process(job: JobTrait) -> JobTrait:
    """A `ProcessJob` with the names and sizes of the job's meshes, these limited by `MONARCH_JOB_SHRINK`."""
    from monarch.job.process import ProcessJob

    if isinstance(job, ProcessJob):
        return job
    limit = _limit()
    return ProcessJob({name: size if limit is None else min(size, limit) for name, size in job._sizes().items()})


def _limit() -> int | None:
    text = os.environ.get(SHRINK)
    if not text:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{SHRINK}={text}: expected a number of hosts, 1 or more")
    return int(text)
