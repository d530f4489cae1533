"""The place of the SPMD backend, which this version does not have."""

from __future__ import annotations

from monarch.job.errors import BackendMissingError

raise BackendMissingError("this version of monarch-jobs has no SPMD backend", hint="it comes with a later release")
