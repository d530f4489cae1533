"""Why a chunk does not come."""

from __future__ import annotations

from typing import NamedTuple


class FetchFailure(NamedTuple):
    """`errno` and `reason` of a chunk that cannot be had; `stale`: its file has changed since the scan."""

    errno: int
    reason: str
    stale: bool = False
    # The answer is from the client: no other upstream is asked.
    final: bool = False
