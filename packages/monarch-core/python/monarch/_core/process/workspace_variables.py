"""The environment variables with the places of workspaces: of the job in procs, of all jobs in processes that an agent starts."""

from __future__ import annotations

import os

VARIABLE = "WORKSPACE_DIR"
# Set by an agent for the processes that it starts: the directory with the workspaces of its jobs.
OF_AGENT = "MONARCH_HOST_WORKSPACES"
# Set in procs only: the client's own variable travels with its environment and means the client's machine.
OF_JOB = "MONARCH_HOST_WORKSPACE_DIR"
# The prefix of a path below the workspace of the job on each host.
BELOW = f"${VARIABLE}/"
# The directory of the client's environment on a host, beside the mirrors and separate from them.
ENVIRONMENT = ".environment"


def has_workspaces() -> bool:
    """Whether this host has workspaces. False if its agent serves its own process only."""
    return OF_JOB in os.environ or OF_AGENT in os.environ
