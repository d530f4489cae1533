"""Objects that are taken out of a message before it is pickled, and put back where it is unpickled: `flatten` and `unflatten`.

It needs cloudpickle, as messages with objects by value do. What always holds: `unflatten(data, values)` puts each value at each place where
the object stood; the order of the values is that in which the pickler met the objects.
"""

# Cloudpickle has no types.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from _io import BytesIO
from _pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

from monarch._core.pickle.by_value import ByValuePickler
from monarch._core.pickle.imports import MessageUnpickler
from monarch._core.pickle.state import state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def flatten(obj: Any, take: Callable[[Any], bool]) -> tuple[list[Any], bytes]:
    """Pickles an object without the parts that `take(part)` selects; returns these parts, and the pickle.

    A part that occurs several times is in the list once. Exceptions of `take` and of pickling are raised as they are.

    >>> parts, data = flatten({"a": b"xx", "n": 1}, lambda part: type(part) is bytes)
    >>> parts, unflatten(data, [b"yy"])
    ([b'xx'], {'a': b'yy', 'n': 1})
    """
    out = BytesIO()
    pickler = _Flattening(out, 5)
    pickler.take = take
    before, state.message = state.message, True
    try:
        pickler.dump(obj)
    finally:
        state.message = before
    return pickler.parts, out.getvalue()


def unflatten(data: bytes | memoryview, values: Iterable[Any]) -> Any:
    """Unpickles `data` of `flatten`, with the values at the places of its parts, in the order of its list.

    `ValueError` if there are fewer values than parts. Values beyond the last part are ignored.
    """
    unpickler = _Unflattening(BytesIO(data))
    unpickler.values = list(values)
    return unpickler.load()


class _Flattening(ByValuePickler):
    take: Callable[[Any], bool]

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.parts: list[Any] = []
        self._numbers: dict[int, int] = {}

    def persistent_id(self, obj: Any) -> int | None:
        number = self._numbers.get(id(obj))
        # The list keeps each part alive, so its address names no other object.
        if number is None and self.take(obj):
            number = self._numbers[id(obj)] = len(self.parts)
            self.parts.append(obj)
        return number


class _Unflattening(MessageUnpickler):
    values: list[Any]

    def persistent_load(self, pid: Any) -> Any:
        if type(pid) is not int or pid < 0:
            raise UnpicklingError(f"unflatten: {pid!r} is not the number of a part")
        if pid >= len(self.values):
            raise ValueError(f"unflatten: {len(self.values)} values, and the pickle has a part {pid}")
        return self.values[pid]
