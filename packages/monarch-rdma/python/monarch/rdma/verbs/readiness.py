"""What is in the way of using a device, and what to do about it: without opening it, so that asking is cheap and changes nothing."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from monarch.rdma.verbs import pyverbs_library
from monarch.rdma.verbs.devices import SYSFS
from monarch.rdma.verbs.registration import budget
from monarch.rdma.verbs.slices import WINDOW

if TYPE_CHECKING:
    from monarch.rdma.verbs.devices import Port

DEVICES = "/dev/infiniband"


class Obstacle(NamedTuple):
    reason: str
    remedy: str


def obstacle(ports: list[Port], sysfs: str = SYSFS, folder: str = DEVICES) -> Obstacle | None:
    """The first obstacle to the use of the device that has these ports; None if none is known."""
    active = [port for port in ports if port.active]
    if not active:
        states = ", ".join(f"port {port.number} is {port.state}" for port in ports) or "it has no port"
        return Obstacle(states, "look at the cable, the switch and the subnet manager: `rdma link`")
    if not any(port.gid for port in active):
        return Obstacle("no port has an address (GID)", "give the network interface of the device an IP address")
    node = character_device(ports[0].device, sysfs)
    path = f"{folder}/{node}"
    if not node or not os.path.exists(path):
        missing = path if node else f"{folder}/uverbs*"
        return Obstacle(f"{missing} is missing", f"load the module ib_uverbs; in a container, pass {folder}/ into it")
    if not os.access(path, os.R_OK | os.W_OK):
        return Obstacle(f"{path} may not be opened by this user", "give the user read and write permission, as udev rules of rdma-core do")
    if lacking := pyverbs_library.problem():
        reason, _, remedy = lacking.rpartition("; ")
        return Obstacle(reason, remedy)
    return too_little_locked_memory()


def too_little_locked_memory() -> Obstacle | None:
    may = budget()
    if may >= WINDOW:
        return None
    return Obstacle(
        f"{may >> 10:,} KiB may be registered, 80 % of the limit of locked memory; {WINDOW >> 10:,} KiB are needed",
        "raise the limit: `ulimit -l unlimited`, `memlock` in /etc/security/limits.conf, `LimitMEMLOCK=` of the service, "
        "`--ulimit memlock=-1` of the container",
    )


def character_device(device: str, sysfs: str = SYSFS) -> str:
    """The name of the file that a device is opened by, `uverbs0`; empty if there is none."""
    folder = f"{sysfs}/class/infiniband_verbs"
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return ""
    for name in names:
        try:
            with open(f"{folder}/{name}/ibdev") as f:
                if f.read().strip() == device:
                    return name
        except OSError:
            continue
    return ""
