"""Tasks of Prefect that run on all processes of a Monarch job."""

from __future__ import annotations

from prefect_monarch.job_hosts import JobHosts as JobHosts
from prefect_monarch.job_hosts import is_failure_of_hosts as is_failure_of_hosts

__all__ = ["JobHosts", "is_failure_of_hosts"]
