"""Bytes that are collected piece by piece and then frozen: pickled by reference, read like a file."""

from __future__ import annotations

from _pickle import PickleBuffer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Buffer as BytesLike


class Buffer:
    """Collects bytes; `freeze` hands them over and leaves it empty."""

    __slots__ = ("_parts", "_size")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def write(self, data: BytesLike, /) -> int:
        """Appends a copy of `data`, any contiguous or strided bytes-like object; returns its size in bytes."""
        part = data if type(data) is bytes else memoryview(data).tobytes()
        if part:
            self._parts.append(part)
            self._size += len(part)
        return len(part)

    def __len__(self) -> int:
        return self._size

    def freeze(self) -> FrozenBuffer:
        """The written bytes, read-only; the buffer is empty afterwards."""
        parts, self._parts, self._size = self._parts, [], 0
        return FrozenBuffer(parts[0] if len(parts) == 1 else b"".join(parts))

    def __repr__(self) -> str:
        return f"Buffer({self._size} bytes)"


class FrozenBuffer(bytes):
    """Read-only bytes with a reading position; `len` is the number of unread bytes, the buffer protocol gives all bytes.

    A subclass of `bytes`, because Python 3.11 lets no other class offer its memory read-only.
    """

    _at = 0

    def read(self, size: int | None = -1, /) -> bytes:
        """The next `size` bytes, or the rest if `size` is negative or None."""
        start = self._at
        end = self._end if size is None or size < 0 else min(start + size, self._end)
        self._at = end
        return bytes(memoryview(self)[start:end])

    def readline(self, size: int | None = -1, /) -> bytes:
        """The next line with its newline, at most `size` bytes of it."""
        newline = self.find(b"\n", self._at)
        length = (self._end if newline < 0 else newline + 1) - self._at
        return self.read(length if size is None or size < 0 else min(size, length))

    def readinto(self, target: BytesLike, /) -> int:
        """Fills `target` with the next bytes; returns the number of bytes written."""
        into = memoryview(target).cast("B")
        start = self._at
        end = min(start + into.nbytes, self._end)
        into[: end - start] = memoryview(self)[start:end]
        self._at = end
        return end - start

    @property
    def _end(self) -> int:
        return bytes.__len__(self)

    def __len__(self) -> int:
        return self._end - self._at

    def __repr__(self) -> str:
        return f"FrozenBuffer({self._end} bytes)"

    def __reduce_ex__(self, protocol: Any, /) -> tuple[Callable[..., FrozenBuffer], tuple[Any, int]]:
        return (_frozen, (PickleBuffer(self) if protocol >= 5 else bytes(memoryview(self)), self._at))


def _frozen(data: bytes, at: int) -> FrozenBuffer:
    made = FrozenBuffer(data)
    if at:
        vars(made)["_at"] = at
    return made
