"""A buffer of this or another process, as its transfers use it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from monarch.extension.bulk import Handle
    from monarch.rdma._gpu.device_handle import DeviceHandle


class RemoteBuffer(Protocol):
    """An `RDMABuffer` (`_buffers/buffer.py`)."""

    _handle: Handle | DeviceHandle

    @property
    def readonly(self) -> bool: ...
    def size(self) -> int: ...
    def _way(self) -> Any:
        """The path of its bytes; `RDMAUnsupportedError` if no transport reaches it."""
        ...

    def _peer(self) -> str: ...
