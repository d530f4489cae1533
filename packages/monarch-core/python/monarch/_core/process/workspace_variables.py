"""Where workspaces are: the environment variables with their places, of the job in procs, of all jobs in what an agent starts."""

from __future__ import annotations

import os

VARIABLE = "WORKSPACE_DIR"
# Set by an agent, for what it starts: the directory with the workspaces of its jobs.
OF_AGENT = "MONARCH_HOST_WORKSPACES"
# In procs only: the client's own variable travels with its environment and means the client's machine.
OF_JOB = "MONARCH_HOST_WORKSPACE_DIR"
# A path that begins so is below the workspace of the job on each host.
BELOW = f"${VARIABLE}/"
# Where the environment of the client is on a host: beside the mirrors, and none of them.
ENVIRONMENT = ".environment"


def has_workspaces() -> bool:
    """False where the agent of this host serves its own process only."""
    return OF_JOB in os.environ or OF_AGENT in os.environ
