"""The place of the SPMD backend, which this version does not have."""

from __future__ import annotations

from monarch.job.errors import BackendMissingError

raise BackendMissingError(
    "this version of monarch-jobs has no SPMD backend", hint="pip install --upgrade 'monarch-jobs[spmd]' brings it once it is released"
)
