"""The processors and GPUs of a host, as `--nproc-per-node=auto` counts them."""

from __future__ import annotations

import os
import re
import socket
from typing import NamedTuple

from monarch.actor import Actor, endpoint


class Devices(NamedTuple):
    """The number of GPUs and processors that this process may use, and the name of its host."""

    gpus: int
    cpus: int
    host: str


class Counter(Actor):
    """Counts in a process of a host."""

    _is_system_actor = True

    @endpoint
    def count(self) -> Devices:
        return Devices(_gpus(), len(os.sched_getaffinity(0)), socket.gethostname())


def _gpus() -> int:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        # The driver does the same: entries after an invalid number do not count.
        names = [name.strip() for name in visible.split(",")]
        return len([name for name in names[: _first_invalid(names)] if name])
    try:
        return sum(1 for name in os.listdir("/dev") if re.fullmatch(r"nvidia[0-9]+", name))
    except OSError:
        return 0


def _first_invalid(names: list[str]) -> int:
    return next((index for index, name in enumerate(names) if name.startswith("-")), len(names))
