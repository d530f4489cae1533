"""The rails that this process has open, each with the thread that polls it, and the local memory that they know."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from monarch import extension
from monarch.rdma.verbs.memory import Range, register
from monarch.rdma.verbs.poller import BUSY_WINDOW, Poller
from monarch.rdma.verbs.registration import Allocation, Registrations, budget
from monarch.rdma.verbs.usable import library, rails_to_open

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monarch.extension.bulk import Bulk
    from monarch.rdma.verbs.memory import Registered
    from monarch.rdma.verbs.provider import Rail
    from monarch.rdma.verbs.registration import Lease

_PAGE = 4096


class Rails:
    """All that the settings leave; `OSError` where none can be opened."""

    def __init__(self, native: Bulk) -> None:
        self._native = native
        self.registrations = Registrations(budget())
        window = extension.seconds("rdma_cq_busy_poll_window")
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

    def know(self, ranges: Sequence[Range]) -> Known:
        """Has all rails know this memory. `OSError` where one cannot."""
        return Known(self, self._native, ranges)

    def close(self) -> None:
        """Nothing may be under way."""
        for _, poller, _ in self.ways:
            poller.close()
        for rail in self.rails:
            rail.close()


class Known:
    """Local memory that all rails know, until `release`."""

    def __init__(self, rails: Rails, native: Bulk, ranges: Sequence[Range]) -> None:
        self._registrations = rails.registrations
        self._leases: list[Lease] = []
        # Registrations of GPU memory: GPU drivers do not report freed memory, so these are kept only as long as this object.
        self._registered: list[Registered] = []
        self._starts: list[int] = []
        self._keys: list[tuple[list[int], int]] = []
        try:
            for memory in merged([one for one in ranges if one.device is None]):
                # Memory of an allocation is registered as a whole and kept, since this process is notified when it is freed.
                whole = native.allocation(memory.address, memory.nbytes)
                allocation = Allocation(memory.address, memory.nbytes) if whole is None else Allocation(*whole)
                leases: list[Lease] = []
                for rail in rails.rails:
                    leases.append(self._registrations.acquire(rail, allocation))
                    self._leases.append(leases[-1])
                self._add(memory.address, [lease.region.key for lease in leases], 0)
            for memory in [one for one in ranges if one.device is not None]:
                registered = register(rails.rails, memory)
                self._registered.append(registered)
                self._add(memory.address, [region.key for region in registered.regions], registered.origin)
        except OSError:
            self.release()
            raise

    def _add(self, address: int, keys: list[int], origin: int) -> None:
        at = bisect_right(self._starts, address)
        self._starts.insert(at, address)
        self._keys.insert(at, (keys, origin))

    def place(self, address: int) -> tuple[list[int], int]:
        """The key on each rail of the memory that this address is in, and the address as requests have it."""
        keys, origin = self._keys[bisect_right(self._starts, address) - 1]
        return keys, address - origin

    def release(self) -> None:
        leases, self._leases = self._leases, []
        for lease in leases:
            self._registrations.release(lease)
        while self._registered:
            self._registered.pop().close()


def merged(ranges: Sequence[Range]) -> list[Range]:
    """The same memory of the host in fewer pieces: those that share a page, or whose pages touch, are one. Pages are what devices know."""
    found: list[Range] = []
    for memory in sorted(ranges, key=lambda one: one.address):
        if found:
            start, length, _ = found[-1]
            if memory.address // _PAGE <= (start + length - 1) // _PAGE + 1:
                found[-1] = Range(start, max(start + length, memory.address + memory.nbytes) - start)
                continue
        found.append(memory)
    return found
