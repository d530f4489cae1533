"""What transfers need of a buffer of this or another process, an `RDMABuffer` (`_buffers/buffer.py`), and what users do not see of it."""

from __future__ import annotations

from operator import methodcaller
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from monarch.extension.bulk import Handle
    from monarch.rdma._gpu.device_handle import DeviceHandle


class RemoteBuffer(Protocol):
    """A buffer: its handle, and the methods that users see."""

    __core__: Handle | DeviceHandle

    @property
    def readonly(self) -> bool: ...
    def size(self) -> int: ...


# The path of its bytes; `RDMAUnsupportedError` if no transport reaches it.
path_of: Callable[[RemoteBuffer], Any] = methodcaller("_way")
# The process that has the memory, for texts of errors.
peer_of: Callable[[RemoteBuffer], str] = methodcaller("_peer")
