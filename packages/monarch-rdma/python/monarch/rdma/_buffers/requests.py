"""The requests of other processes that the owner of a buffer answers.

Each handler is loaded with its first request: memory of GPUs takes 15 ms to import, devices take 25 ms, and most owners receive neither.
"""

from __future__ import annotations

from monarch import extension
from monarch.rdma._process.process import COPY, DEVICES

_served = False


def serve_requests() -> None:
    """Answers requests about the buffers of this process from now on."""
    global _served
    if not _served:
        extension.serve(COPY, _copy)
        extension.serve(DEVICES, _devices)
        _served = True


def _copy(request: extension.Request) -> None:
    from monarch.rdma._gpu.copies import answer

    answer(request)


def _devices(request: extension.Request) -> None:
    from monarch.rdma.verbs.fabric import fabric

    fabric().answer(request)
