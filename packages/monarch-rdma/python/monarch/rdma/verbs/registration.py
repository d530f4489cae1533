"""Local memory that devices know: registered once per allocation and rail, and kept, within a budget of pinned bytes.

The key is an allocation and its generation: memory that was freed and allocated again at the same address is other memory, whose pages the
device does not know. Memory without a generation is registered for one use. The least recently used goes first; a transfer closes nothing
itself unless the budget leaves it no choice, that is for `trim`, which pollers call when they have nothing to do.
"""

from __future__ import annotations

import errno
import os
import resource
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from monarch.rdma.verbs.provider import Rail, Region

# The fraction of lockable memory for registrations: the rest is for other code, and for queues.
_SHARE = 0.8
# The fraction of the budget that `trim` keeps, so that a new registration need not close old ones.
_TRIMMED = 0.9
_CAP_IPC_LOCK = 1 << 14


class Allocation(NamedTuple):
    """The memory that a buffer is part of; None as generation: nothing reports when it is freed."""

    address: int
    nbytes: int
    generation: int | None = None


class Lease:
    """A registration in use."""

    __slots__ = ("entry", "region")

    def __init__(self, region: Region, entry: _Entry) -> None:
        self.region = region
        self.entry = entry


class _Entry:
    __slots__ = ("key", "nbytes", "region", "users")

    def __init__(self, key: tuple[int, Allocation] | None, region: Region, nbytes: int) -> None:
        self.key = key  # None: not in the cache, and closed after its last use
        self.region = region
        self.nbytes = nbytes
        self.users = 0


class Registrations:
    """Those of a process, on all its rails."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.pinned = 0
        self._lock = threading.Lock()
        self._cached: OrderedDict[tuple[int, Allocation], _Entry] = OrderedDict()
        self._over: list[_Entry] = []

    def acquire(self, rail: Rail, allocation: Allocation) -> Lease:
        """A registration of the whole allocation; `OSError` where the budget, or the device, has no room for it."""
        key = (id(rail), allocation)
        with self._lock:
            entry = self._cached.get(key)
            if entry is not None:
                self._cached.move_to_end(key)
                entry.users += 1
                return Lease(entry.region, entry)
            self._make_room(allocation.nbytes)
            # The bytes are counted before the registration, so that other threads make room as well.
            self.pinned += allocation.nbytes
        try:
            region = self._register(rail, allocation)
        except BaseException:
            with self._lock:
                self.pinned -= allocation.nbytes
            raise
        entry = _Entry(key if allocation.generation is not None else None, region, allocation.nbytes)
        entry.users = 1
        with self._lock:
            if entry.key is not None:
                if entry.key in self._cached:  # another thread was faster
                    entry.key = None
                else:
                    self._cached[entry.key] = entry
        return Lease(region, entry)

    def release(self, lease: Lease) -> None:
        entry = lease.entry
        with self._lock:
            entry.users -= 1
            if not entry.users and entry.key is None:
                self._over.append(entry)

    def forget(self, address: int, nbytes: int) -> None:
        """Memory that is about to be freed: what is registered of it is closed, now where nothing uses it, else with its last use."""
        with self._lock:
            for key in [k for k in self._cached if k[1].address < address + nbytes and address < k[1].address + k[1].nbytes]:
                entry = self._cached.pop(key)
                entry.key = None
                if not entry.users:
                    self._over.append(entry)
            over = self._take_over()
        _close(over)

    def trim(self) -> None:
        """Closes what is over, and the least recently used until there is some room."""
        with self._lock:
            self._evict(int(self.budget * _TRIMMED))
            over = self._take_over()
        _close(over)

    def close(self) -> None:
        """Nothing may be in use."""
        with self._lock:
            self._evict(0)
            over = self._take_over()
        _close(over)

    def _register(self, rail: Rail, allocation: Allocation) -> Region:
        try:
            return rail.register(allocation.address, allocation.nbytes)
        except OSError as e:
            if e.errno not in (errno.ENOMEM, errno.EAGAIN):
                raise
        # Other code of this process locks memory as well: the budget is no promise.
        self.close()
        return rail.register(allocation.address, allocation.nbytes)

    def _make_room(self, nbytes: int) -> None:
        if self.pinned + nbytes <= self.budget:
            return
        self._evict(self.budget - nbytes)
        _close(self._take_over())
        if self.pinned + nbytes > self.budget:
            raise OSError(
                errno.ENOMEM,
                f"registering {nbytes:,} bytes: {self.pinned:,} of {self.budget:,} bytes that may be locked are in use (`ulimit -l`)",
            )

    def _evict(self, most: int) -> None:
        over = sum(entry.nbytes for entry in self._over)
        for key in list(self._cached):
            if self.pinned - over <= most:
                return
            entry = self._cached[key]
            if not entry.users:
                del self._cached[key]
                self._over.append(entry)
                over += entry.nbytes

    def _take_over(self) -> list[_Entry]:
        over, self._over = self._over, []
        self.pinned -= sum(entry.nbytes for entry in over)
        return over


def _close(entries: list[_Entry]) -> None:
    for entry in entries:
        entry.region.close()


def budget(status_file: str = "/proc/self/status") -> int:
    """Bytes that registrations may pin: 80 % of the limit of locked memory, of all memory where there is no limit for this process."""
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if limit == resource.RLIM_INFINITY or _unlimited(status_file):
        limit = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return int(limit * _SHARE)


def _unlimited(status_file: str) -> bool:
    """The kernel asks for no limit where a process may lock memory at will."""
    try:
        with open(status_file) as f:
            capabilities = next((line.split()[1] for line in f if line.startswith("CapEff:")), "0")
    except OSError:
        return False
    return bool(int(capabilities, 16) & _CAP_IPC_LOCK)
