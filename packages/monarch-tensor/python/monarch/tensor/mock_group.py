"""A process group that moves nothing, for shapes."""

from __future__ import annotations


class MockGroup:
    """Has a size and the rank 0."""

    def __init__(self, size: int) -> None:
        self._size = size

    def size(self) -> int:
        return self._size

    def rank(self) -> int:
        return 0
