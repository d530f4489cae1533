"""Memory that devices are to know: of the host, or of a GPU.

That of a GPU is registered by a dma-buf of its driver; else directly, which works where nvidia-peermem is loaded.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from monarch.rdma.drivers.library import DriverError
from monarch.rdma.drivers.loaded import driver

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from monarch.rdma.verbs.provider import Rail, Region


class Range(NamedTuple):
    """`device` is the GPU that it is on, as a number of the driver; None: the host."""

    address: int
    nbytes: int
    device: int | None = None


class Registered(NamedTuple):
    """A region on each rail; in requests, addresses count from `origin`."""

    regions: list[Region]
    origin: int

    def close(self) -> None:
        while self.regions:
            self.regions.pop().close()


def register(rails: Sequence[Rail], memory: Range, *, remote_read: bool = False, remote_write: bool = False) -> Registered:
    """On all rails, or `OSError`."""
    address, nbytes, device = memory
    if device is not None:
        try:
            return _by_dma_buffer(rails, address, nbytes, device, remote_read, remote_write)
        except OSError as e:
            reason = e
    else:
        reason = None
    try:
        return Registered(
            _on_each(rails, lambda rail: rail.register(address, nbytes, remote_read=remote_read, remote_write=remote_write)), 0
        )
    except OSError as e:
        raise reason or e from None
    finally:
        # The traceback of the exception has this frame.
        del reason


def _by_dma_buffer(rails: Sequence[Rail], address: int, nbytes: int, device: int, read: bool, write: bool) -> Registered:
    # The range has whole pages. Only a key for this range covers the neighbouring memory in them.
    page = os.sysconf("SC_PAGE_SIZE")
    start, end = address // page * page, -(-(address + nbytes) // page) * page
    try:
        loaded = driver()
        with loaded.on(device):
            descriptor, offset = loaded.dma_buffer(start, end - start)
    except DriverError as e:
        raise OSError(str(e)) from None
    try:
        return Registered(
            _on_each(rails, lambda rail: rail.register_dma_buffer(descriptor, offset, end - start, remote_read=read, remote_write=write)),
            start - offset,
        )
    finally:
        os.close(descriptor)


def _on_each(rails: Sequence[Rail], register: Callable[[Rail], Region]) -> list[Region]:
    made: list[Region] = []
    try:
        for rail in rails:
            made.append(register(rail))
    except OSError:
        for region in made:
            region.close()
        raise
    return made
