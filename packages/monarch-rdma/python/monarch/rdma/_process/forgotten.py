"""Memory that nothing keeps but handles that were given away.

A handle that was pickled keeps its buffer until a process drops it. When the owner's own handle goes while the owner lives on, the owner
can no longer do that. At exit one line reports such buffers, if they are large; what handles keep that end with the process is no surprise.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import ref

from monarch.extension import is_ending
from monarch.extension.bulk import BulkFailed

if TYPE_CHECKING:
    from monarch.extension.bulk import Bulk, Handle

# Bytes from which a line at exit is printed.
_MUCH = 1 << 30
# The number of kept buffers from which dropped ones are searched for.
_LEAST = 1024


class _Shared(NamedTuple):
    """A buffer of this process: where it is, and what it is registered as."""

    address: int
    nbytes: int
    id: bytes
    epoch: int
    owner: int
    registered: int
    readonly: bool


class Forgotten:
    """Used from any thread, and by the garbage collector at any time: so without locks, by single operations on dictionaries."""

    def __init__(self) -> None:
        self._given: dict[ref[Any], _Shared] = {}
        self._forgotten: dict[bytes, _Shared] = {}
        self._most = _LEAST

    def give(self, buffer: object, handle: Handle, address: int, nbytes: int) -> None:
        """A buffer that was made here, with this handle of its memory, is pickled for the first time."""
        self._given[ref(buffer, self._gone)] = _Shared(address, nbytes, *handle.parts())

    def _gone(self, handle: ref[Any]) -> None:
        shared = self._given.pop(handle, None)
        if shared is not None and not is_ending():
            self._forgotten[shared.id] = shared

    def prune(self, native: Bulk) -> None:
        """What has been dropped meanwhile is forgotten here, too; does nothing as long as there is little."""
        if len(self._forgotten) <= self._most:
            return
        for id, shared in list(self._forgotten.items()):
            if not _is_there(native, shared):
                self._forgotten.pop(id, None)
        self._most = max(_LEAST, 2 * len(self._forgotten))

    def warning(self, native: Bulk) -> str:
        """The line for the exit; empty if it is little."""
        left = [shared for shared in list(self._forgotten.values()) if _is_there(native, shared)]
        nbytes = _covered(left)
        if nbytes <= _MUCH:
            return ""
        buffers = f"{len(left):,} RDMA buffer{'s' * (len(left) != 1)}"
        return (
            f"process {os.getpid()}: {nbytes:,} bytes were held until exit by {buffers} of which only others had handles: "
            "drop() what is not used any more, or make it with a lease"
        )


def _is_there(native: Bulk, shared: _Shared) -> bool:
    try:
        native.handle(shared.id, shared.epoch, shared.owner, shared.registered, shared.readonly, False).path(0)
    except BulkFailed:
        return False
    return True


def _covered(buffers: list[_Shared]) -> int:
    """Bytes of which at least one is: the same memory may be shared many times."""
    total = end = 0
    for shared in sorted(buffers):
        last = shared.address + shared.nbytes
        total += max(0, last - max(shared.address, end))
        end = max(end, last)
    return total
