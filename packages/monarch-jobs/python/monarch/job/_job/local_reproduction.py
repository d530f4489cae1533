"""Local reproduction: with `MONARCH_JOB=process` in the environment, processes of this machine replace the hosts of a job."""

from __future__ import annotations

import os
from collections.abc import Mapping

REPLACE = "MONARCH_JOB"
SHRINK = "MONARCH_JOB_SHRINK"


def is_requested() -> bool:
    """Whether the environment requests it; `ValueError` for another value than `process`."""
    kind = os.environ.get(REPLACE)
    if kind and kind != "process":
        raise ValueError(f"{REPLACE}={kind}: only 'process' can replace a job")
    return bool(kind)


def shrunk(sizes: Mapping[str, int]) -> dict[str, int]:
    """The number of hosts of each mesh, at most `MONARCH_JOB_SHRINK`; `ValueError` if that is no positive number."""
    text = os.environ.get(SHRINK)
    if not text:
        return dict(sizes)
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{SHRINK}={text}: expected a number of hosts, 1 or more")
    return {name: min(size, int(text)) for name, size in sizes.items()}
