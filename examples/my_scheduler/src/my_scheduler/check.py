"""Jobs for the conformance suite: `python -m monarch.job.testing my_scheduler.check.queue_job`."""

from __future__ import annotations

import os

from monarch.job import JobTrait, job_of_kind
from my_scheduler.job import SlotJob


def queue_job() -> JobTrait:
    return job_of_kind("my-queue", meshes={"trainers": 2, "data": 1}, folder=_folder())


def slot_job() -> JobTrait:
    return SlotJob(2, folder=_folder())


def _folder() -> str:
    """The folder of the jobs, removed with the folder of the suite."""
    return os.path.join(os.environ["MONARCH_HOME"], "my_scheduler")
