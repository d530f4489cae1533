"""The place of the TorchX backend, which this version does not have."""

from __future__ import annotations

from monarch.job.errors import BackendMissingError

raise BackendMissingError("this version of monarch-jobs has no TorchX backend", hint="it comes with a later release")
