"""Folders that other wheels make on a host, and that are removed with the worker of this host."""

from __future__ import annotations

import os

from monarch._core.process.workspace_variables import OF_JOB
from monarch._core.sync.host_workspaces import keep_until_end


def remove_with_host(folder: str, parents: int = 0) -> None:
    """Requests the removal of a folder of this host at the end of the host's worker, or by the host's next worker if that one is killed.

    Up to `parents` directories above it are removed too, if they are empty then. To be called in a proc. The host of the client itself has
    no worker: there the folder stays. `OSError` if the request cannot be recorded.
    """
    workspace = os.environ.get(OF_JOB)
    if workspace is not None:
        keep_until_end(os.path.dirname(workspace), folder, parents)
