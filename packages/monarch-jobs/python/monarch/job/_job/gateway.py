"""The gateway that a user has named: one address by which all hosts of a job are reached."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from monarch import actor
from monarch.job._job.allocation import Allocation


def attach_gateway(address: str, trust: Mapping[str, Any], allocation: Allocation, join_timeout: float | None) -> None:
    """Waits for it as long as the job may take to start: it may be one of its hosts. `trust` is as for `join_gateway`.

    `AttachError` where it does not answer `join_timeout` seconds after the job runs; `JobEndedError` where the job has ended.
    """
    from monarch.extension.mesh import join_gateway

    running: float | None = None
    while True:
        try:
            return join_gateway(address, **trust)
        except actor.AuthenticationError:
            raise
        except actor.AttachError:
            status = allocation.poll()
            now = time.monotonic()
            if status.phase == "ended":
                raise allocation.ended(status) from None
            if allocation.stopped.is_set():
                raise
            running = (running or now) if status.phase == "running" else None
            if running is not None and join_timeout is not None and now - running >= join_timeout:
                raise
