"""RDMA devices as the kernel shows them: ports, addresses, and how far they are from a NUMA node or from another device.

All of it comes from files, so that it works without a library and without permission to open a device, and with a made-up tree in tests.
"""

from __future__ import annotations

import os
from typing import NamedTuple

SYSFS = "/sys"
ETHERNET, UNKNOWN = "Ethernet", "Unspecified"
# The most entries of an address table that are read; the kernel's has 1,024 in soft-RoCE, and the useful ones come first.
_ENTRIES = 64
_ACTIVE = 4
# Penalties by distance: a distant device takes longer, and uses bandwidth between nodes that others need.
PENALTIES = (1.0, 1.05, 1.1, 2.0)


class Port(NamedTuple):
    """A port of a device, with the address that others reach it by; `gid` is empty where it has none."""

    device: str
    number: int
    link_layer: str
    active: bool
    state: str
    rate: float  # bits per second
    gid: bytes
    gid_index: int
    gid_type: str
    numa: int | None
    location: str  # folder of the device below /sys/devices

    @property
    def name(self) -> str:
        return self.device if self.number == 1 else f"{self.device}:{self.number}"

    @property
    def efa(self) -> bool:
        """EFA devices report an unspecified link layer."""
        return self.link_layer == UNKNOWN


def ports(sysfs: str = SYSFS) -> list[Port]:
    """All ports of all devices, by name."""
    found: list[Port] = []
    folder = f"{sysfs}/class/infiniband"
    for device in _names(folder):
        numbers = sorted(int(name) for name in _names(f"{folder}/{device}/ports") if name.isdecimal())
        found += [_port(folder, device, number) for number in numbers]
    return found


def _port(folder: str, device: str, number: int) -> Port:
    here = f"{folder}/{device}/ports/{number}"
    link_layer = _text(f"{here}/link_layer")
    state, _, name = _text(f"{here}/state").partition(":")
    index, kind, gid = _address(here, link_layer)
    node = _text(f"{folder}/{device}/device/numa_node")
    # Virtual devices have no parent on a bus.
    parent = f"{folder}/{device}/device"
    location = os.path.realpath(parent if os.path.exists(parent) else f"{folder}/{device}")
    return Port(
        device,
        number,
        link_layer,
        state == str(_ACTIVE),
        name.strip() or "unknown",
        _rate(_text(f"{here}/rate")),
        gid,
        index,
        kind,
        int(node) if node.isdecimal() else None,
        location,
    )


def _address(port: str, link_layer: str) -> tuple[int, str, bytes]:
    """Index, type and value of the address to use.

    On Ethernet that is one of RoCE version 2, which routers pass on: first an IPv4 address, then a global one of IPv6, then any.
    InfiniBand and EFA have theirs at index 0.
    """
    best = (0, 0, "", b"")
    for index in sorted(int(name) for name in _names(f"{port}/gids") if name.isdecimal())[:_ENTRIES]:
        gid = _gid(_text(f"{port}/gids/{index}"))
        if not any(gid):
            continue
        kind = _text(f"{port}/gid_attrs/types/{index}")
        rank = 1
        if link_layer == ETHERNET:
            ipv4, local = gid[:12] == bytes(10) + b"\xff\xff", gid[0] == 0xFE and gid[1] & 0xC0 == 0x80
            rank = (4 if ipv4 else 2 if local else 3) if kind == "RoCE v2" else 1
        if rank > best[0]:
            best = (rank, index, kind, gid)
    return best[1:]


def distance(port: Port, numa: int | None = None, location: str = "") -> int:
    """The distance of memory from a port, smaller is nearer: memory of a NUMA node, or of a device (a GPU) at `location` in /sys/devices.

    0: below the same PCI switch, or on the same node; 1: the same root complex; 2: the same node, or not known; 3: another node.
    """
    if location:
        shared = os.path.commonpath([location, port.location]) if port.location else "/"
        parts = shared.split("/")
        # .../devices/pci0000:00/0000:00:01.0/...: the parts after the root complex are bridges above both.
        root = next((i for i, part in enumerate(parts) if part.startswith("pci")), None)
        if root is not None:
            return 0 if len(parts) > root + 1 else 1
    if numa is None or port.numa is None:
        return 2
    if numa != port.numa:
        return 3
    return 2 if location else 0


def nearest(candidates: list[Port], numa: int | None = None, location: str = "") -> list[Port]:
    """Usable ports, nearest first, then the fastest."""
    usable = [port for port in candidates if port.active and port.gid]
    return sorted(usable, key=lambda port: (distance(port, numa, location), -port.rate, port.device, port.number))


def chosen(candidates: list[Port], target: str = "", most: int | None = None, location: str = "") -> list[tuple[Port, float]]:
    """Usable ports that the settings `rdma_ibverbs_target` and `rdma_max_nics_per_buffer` leave, nearest first, with their penalties.

    Without a number, all that are as near as the nearest: more would have to go through another node's memory. `location` is where the
    GPU of a target `gpu:N` is, below /sys/devices.
    """
    kind, _, which = target.partition(":")
    if kind == "nic":
        candidates = [port for port in candidates if which in (port.device, port.name)]
    numa = int(which) if kind == "cpu" else None
    ranked = nearest(candidates, numa, location)
    if not ranked:
        return []
    near = distance(ranked[0], numa, location)
    found = [(port, PENALTIES[distance(port, numa, location)]) for port in ranked]
    if most is not None:
        return found[:most]
    return [(port, penalty) for port, penalty in found if penalty <= PENALTIES[max(near, 2)]]


def _rate(text: str) -> float:
    """`200 Gb/sec (4X HDR)`"""
    number = text.split(" ", 1)[0]
    try:
        return float(number) * 1e9
    except ValueError:
        return 0.0


def _gid(text: str) -> bytes:
    try:
        gid = bytes.fromhex(text.replace(":", ""))
    except ValueError:
        gid = b""
    return gid if len(gid) == 16 else b""


def _text(path: str) -> str:
    """The text of a file; empty where it cannot be read, as in entries of a table that are not in use."""
    try:
        with open(path) as f:
            return f.read().strip()
    except OSError:
        return ""


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []
