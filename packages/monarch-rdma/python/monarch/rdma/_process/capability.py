"""What two processes must know of each other to choose a path: on which host each is, and what it can be reached by."""

from __future__ import annotations

import os
from hashlib import blake2b
from typing import NamedTuple


class CapabilityRecord(NamedTuple):
    """`host` is equal for processes that can share memory: of one boot of one kernel, in one namespace of networks, of one user.

    `has_rails`: it has devices that others may reach its memory by, as far as is known without opening one.
    """

    host: bytes
    has_rails: bool = False


def own_record() -> CapabilityRecord:
    return CapabilityRecord(blake2b("|".join(_facts()).encode(), digest_size=8).digest())


def _facts() -> list[str]:
    try:
        with open("/proc/sys/kernel/random/boot_id") as f:
            boot = f.read().strip()
    except OSError:  # not mounted: then names distinguish hosts
        boot = os.uname().nodename
    try:
        # Owners are found by abstract sockets, and each namespace of networks has its own.
        network = os.stat("/proc/self/ns/net").st_ino
    except OSError:
        network = 0
    return [boot, str(network), str(os.geteuid())]
