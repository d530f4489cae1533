"""The place of the SkyPilot backend, which this version does not have."""

from __future__ import annotations

from monarch.job.errors import BackendMissingError

raise BackendMissingError(
    "this version of monarch-jobs has no SkyPilot backend",
    hint="it comes with a later release",
)
