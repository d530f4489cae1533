"""Jobs out of files and bytes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from monarch.job import _store
from monarch.job._trait import DEFAULT_JOB_PATH

if TYPE_CHECKING:
    from monarch.job._trait import JobTrait


def job_load(filename: str = DEFAULT_JOB_PATH) -> JobTrait:
    """The job of a state file; a missing `X.pkl` tries `X.json`. `StateFileError` says what is wrong with the file."""
    return _store.load(os.fspath(filename))


def job_loads(data: bytes) -> JobTrait:
    """The job of what `dumps` gave."""
    return _store.decode(bytes(data))
