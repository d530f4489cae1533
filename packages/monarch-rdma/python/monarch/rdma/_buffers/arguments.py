"""Arguments that several calls take, checked before anything starts."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from monarch.rdma._transfer.memory import local_memory
from monarch.rdma._transfer.remote_buffer import peer_of
from monarch.rdma.errors import RDMAAccessError

if TYPE_CHECKING:
    from monarch.rdma._transfer.memory import Memory
    from monarch.rdma._transfer.remote_buffer import RemoteBuffer

_U64 = 1 << 64


def check_timeout(timeout: Any, name: str = "timeout") -> float:
    """Seconds: `TypeError` unless a number, `ValueError` for a negative one or NaN, `OverflowError` beyond 64 bits; with this name."""
    if not isinstance(timeout, (int, float)) or isinstance(timeout, bool):
        raise TypeError(f"{name} must be a number of seconds, got {timeout!r}")
    if not timeout >= 0:
        raise ValueError(f"{name} must not be negative, got {timeout}")
    if timeout >= _U64:
        raise OverflowError(f"{name} of {timeout} s is beyond 64 bits")
    return float(timeout)


def check_lease(lease: Any) -> float | None:
    if lease is None:
        return None
    if not isinstance(lease, (int, float)) or isinstance(lease, bool):
        raise TypeError(f"lease must be a number of seconds, got {type(lease).__name__}")
    if not lease > 0:
        raise ValueError(f"lease must be longer than 0 s, got {lease}")
    if lease >= _U64:
        raise OverflowError(f"lease of {lease} s is beyond 64 bits")
    return float(lease)


def check_offset(offset: Any, size: int) -> int:
    """A place in a buffer of `size` bytes."""
    offset = operator.index(offset)
    if not 0 <= offset < size:
        raise ValueError(f"offset {offset:,} is outside the buffer of {size:,} bytes")
    return offset


def reading(buffer: RemoteBuffer, dst: Any, offset: Any) -> tuple[Memory, int, int]:
    """Local memory, offset and bytes of a read from the offset to the end of the buffer."""
    memory, size = local_memory(dst), buffer.size()
    if memory.readonly:
        raise ValueError("the local memory is read-only: it cannot be read into")
    offset = check_offset(offset, size) if offset else 0
    nbytes = size - offset
    if memory.nbytes < nbytes:
        raise ValueError(f"the local memory has {memory.nbytes:,} bytes, the buffer {nbytes:,} from offset {offset:,} on: it does not fit")
    return memory, offset, nbytes


def writing(buffer: RemoteBuffer, src: Any, offset: Any) -> tuple[Memory, int]:
    """Local memory and offset of a write."""
    memory, size = local_memory(src), buffer.size()
    offset = check_offset(offset, size) if offset else 0
    if memory.nbytes > size - offset:
        raise ValueError(
            f"the local memory has {memory.nbytes:,} bytes, the buffer {size - offset:,} from offset {offset:,} on: it does not fit"
        )
    if buffer.readonly:
        raise RDMAAccessError(f"write of {memory.nbytes:,} bytes, {peer_of(buffer)}: the handle is read-only")
    return memory, offset


def check_word(name: str, value: Any) -> int:
    value = operator.index(value)
    if not 0 <= value < _U64:
        raise OverflowError(f"{name} must be an unsigned 64-bit number, got {value}")
    return value
