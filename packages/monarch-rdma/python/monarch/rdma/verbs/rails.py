"""The rails that this process has open, each with the thread that polls it, and the local memory that they know."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from monarch._core import bulk
from monarch.rdma.verbs.poller import BUSY_WINDOW, Poller
from monarch.rdma.verbs.registration import Allocation, Registrations, budget
from monarch.rdma.verbs.usable import library, rails_to_open

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monarch._core._native.bulk import Bulk
    from monarch.rdma.verbs.provider import Rail
    from monarch.rdma.verbs.registration import Lease

_PAGE = 4096


class Rails:
    """All that the settings leave; `OSError` where none can be opened."""

    def __init__(self, native: Bulk) -> None:
        self._native = native
        self.registrations = Registrations(budget())
        window = bulk.seconds("rdma_cq_busy_poll_window")
        self.rails: list[Rail] = []
        self.ways: list[tuple[Rail, Poller, float]] = []
        troubles: list[str] = []
        for port, penalty in rails_to_open():
            try:
                rail = library().open(port)
            except OSError as e:
                troubles.append(str(e))
                continue
            poller = Poller(rail, window=BUSY_WINDOW if window is None else window, idle=self.registrations.trim)
            self.rails.append(rail)
            self.ways.append((rail, poller, penalty))
        if not self.rails:
            raise OSError("; ".join(troubles) or "no RDMA device that is to be used")

    def know(self, ranges: Sequence[tuple[int, int]]) -> Known:
        """Has all rails know this memory: addresses and bytes. `OSError` where one cannot."""
        return Known(self, self._native, ranges)

    def close(self) -> None:
        """Nothing may be under way."""
        for _, poller, _ in self.ways:
            poller.close()
        for rail in self.rails:
            rail.close()


class Known:
    """Local memory that all rails know, until `release`."""

    def __init__(self, rails: Rails, native: Bulk, ranges: Sequence[tuple[int, int]]) -> None:
        self._registrations = rails.registrations
        self._starts: list[int] = []
        self._leases: list[list[Lease]] = []
        try:
            for address, nbytes in merged(ranges):
                # Memory of an allocation is known as a whole and kept, since we are told when it is freed.
                whole = native.allocation(address, nbytes)
                allocation = Allocation(address, nbytes) if whole is None else Allocation(*whole)
                self._starts.append(address)
                self._leases.append([])
                for rail in rails.rails:
                    self._leases[-1].append(self._registrations.acquire(rail, allocation))
        except OSError:
            self.release()
            raise

    def keys(self, address: int) -> list[int]:
        """By rail, of the memory that this address is in."""
        return [lease.region.key for lease in self._leases[bisect_right(self._starts, address) - 1]]

    def release(self) -> None:
        leases, self._leases = self._leases, []
        for row in leases:
            for lease in row:
                self._registrations.release(lease)


def merged(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same memory in fewer pieces: those that share a page, or whose pages touch, are one. Pages are what devices know."""
    found: list[tuple[int, int]] = []
    for address, nbytes in sorted(ranges):
        if found:
            start, length = found[-1]
            if address // _PAGE <= (start + length - 1) // _PAGE + 1:
                found[-1] = start, max(start + length, address + nbytes) - start
                continue
        found.append((address, nbytes))
    return found
