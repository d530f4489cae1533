"""Whether this process uses devices at all, found out without opening one."""

from __future__ import annotations

import os
from functools import lru_cache
from importlib import import_module
from itertools import groupby
from typing import TYPE_CHECKING, Protocol

from monarch import extension
from monarch.rdma.verbs.devices import SYSFS, chosen, ports
from monarch.rdma.verbs.readiness import DEVICES, Obstacle, obstacle

if TYPE_CHECKING:
    from monarch.rdma.verbs.devices import Port
    from monarch.rdma.verbs.provider import Rail

# The variable for another library than pyverbs, as `module:class`, made without arguments: for tests, and for a library of a device's
# maker.
PROVIDER = "MONARCH_RDMA_PROVIDER"


class Devices(Protocol):
    """A library with the devices that it drives."""

    def ports(self) -> list[Port]: ...

    def obstacle(self, ports: list[Port]) -> Obstacle | None:
        """The obstacles to the use of the device that has these ports."""
        ...

    def open(self, port: Port) -> Rail: ...


class Pyverbs:
    """Those that the kernel shows, by pyverbs, which is not loaded before it is needed."""

    def __init__(self, sysfs: str = SYSFS, folder: str = DEVICES) -> None:
        self._sysfs = sysfs
        self._folder = folder

    def ports(self) -> list[Port]:
        return ports(self._sysfs)

    def obstacle(self, ports: list[Port]) -> Obstacle | None:
        return obstacle(ports, self._sysfs, self._folder)

    def open(self, port: Port) -> Rail:
        # The import takes 5 ms, and the library may be absent: the owner of any buffer loads this module.
        from monarch.rdma.verbs.pyverbs_provider import PyverbsProvider

        return PyverbsProvider().open(port)


@lru_cache(maxsize=1)
def library() -> Devices:
    """The library of this process."""
    module, _, name = os.environ.get(PROVIDER, "").partition(":")
    if not module:
        return Pyverbs()
    return getattr(import_module(module), name)()


def by_device(library: Devices) -> list[tuple[list[Port], Obstacle | None]]:
    """Each device, as its ports, and what is in its way; the settings are not asked."""
    return [(own, library.obstacle(own)) for own in (list(group) for _, group in groupby(library.ports(), lambda port: port.device))]


def usable() -> bool:
    """There is a device, nothing known is in its way, and the settings permit it."""
    return bool(rails_to_open())


def rails_to_open() -> tuple[tuple[Port, float], ...]:
    """One port of each device that is to be used, nearest first, with its penalty."""
    if extension.setting("rdma_disable_ibverbs"):
        return ()
    return _rails_to_open(extension.setting("rdma_ibverbs_target"), extension.setting("rdma_max_nics_per_buffer"))


# Devices do not change while a process runs; `connection` handles those that fail.
@lru_cache(maxsize=8)
def _rails_to_open(target: str, most: int | None) -> tuple[tuple[Port, float], ...]:
    free = [port for own, what in by_device(library()) if what is None for port in own]
    # Keys of memory are those of a device, so two ports of one device would conflict.
    first: dict[str, tuple[Port, float]] = {}
    for port, penalty in chosen(free, target):
        first.setdefault(port.device, (port, penalty))
    return tuple(first.values())[:most]
