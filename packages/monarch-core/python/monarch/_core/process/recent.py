"""Bounded collections, so that a process with many short-lived objects stays small."""

from __future__ import annotations

from _thread import RLock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

# The number of items of a collection, some hundred bytes each.
MOST = 8192


class RecentMap:
    """The last `most` items that were added, from any thread."""

    __slots__ = ("_items", "_lock", "_most")

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._items: dict[Any, Any] = {}
        # A thread that removes the oldest item must not meet a thread that adds. Reentrant: the garbage collector may run a finalizer.
        self._lock = RLock()

    def update(self, items: Iterable[tuple[Any, Any]]) -> None:
        with self._lock:
            self._items.update(items)
            while len(self._items) > self._most:
                del self._items[next(iter(self._items))]

    def pop(self, key: Any) -> Any:
        """Removes and returns the item; None if there is none."""
        return self._items.pop(key, None)

    def get(self, key: Any) -> Any:
        """The item; None if it was never added, or was dropped."""
        return self._items.get(key)

    def keys(self) -> list[Any]:
        """A copy of the present keys, oldest first."""
        return list(self._items)

    def __contains__(self, key: object) -> bool:
        return key in self._items

    def __len__(self) -> int:
        return len(self._items)


class Recent:
    """The last 8192 items that were added, from any thread."""

    __slots__ = ("_map",)

    def __init__(self) -> None:
        self._map = RecentMap()

    def add(self, item: Any) -> None:
        self._map.update([(item, None)])

    def discard_all(self, items: Iterable[Any]) -> None:
        for item in items:
            self._map.pop(item)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._map.keys())

    def __contains__(self, item: object) -> bool:
        return item in self._map
