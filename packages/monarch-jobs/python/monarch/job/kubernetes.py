"""The place of the Kubernetes backend, which this version does not have."""

from __future__ import annotations

from monarch.job.errors import BackendMissingError

raise BackendMissingError(
    "this version of monarch-jobs has no Kubernetes backend",
    hint="pip install --upgrade 'monarch-jobs[kubernetes]' brings it once it is released",
)
