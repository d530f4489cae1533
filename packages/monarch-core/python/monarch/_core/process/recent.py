"""A set that forgets: what a process remembers of those that come and go stays small."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

# Some hundred bytes each.
_MOST = 8192


class Recent:
    """The last 8192 that were added."""

    def __init__(self) -> None:
        self._items: dict[Any, None] = {}

    def add(self, item: Any) -> None:
        self._items[item] = None
        if len(self._items) > _MOST:
            del self._items[next(iter(self._items))]

    def discard_all(self, items: Iterable[Any]) -> None:
        for item in items:
            self._items.pop(item, None)

    def __contains__(self, item: object) -> bool:
        return item in self._items

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items)
