"""Reducers that programs register for types of their own: `register`. They hold for messages of this process, not for other pickles.

What always holds: a reducer has precedence over the type's own `__reduce__` and over the reduction of tensors; a type without one costs
one lookup in an empty table.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# The reducer of each type. Read by the picklers for each object, written under the GIL.
reducers: dict[type[Any], Callable[[Any], Any]] = {}

# The C pickler never asks how objects of these types are reduced.
_FIXED = (bool, bytearray, bytes, complex, dict, float, frozenset, int, list, set, str, tuple, type(None))


def register(kind: type[Any], reduce: Callable[[Any], Any] | None) -> None:
    """Sets how objects of exactly this type are pickled in messages that this process sends.

    `reduce(obj)` returns what `__reduce__` returns: a function and its arguments, with which a receiver makes the object, or a text that
    names a global. Receivers need the function, not the registration: it travels by name or by value as any function. None removes the
    reducer of the type. `TypeError` for anything but a class, and for a builtin type of which the pickler writes the content itself.

    >>> class Handle:
    ...     def __init__(self, number): self.number = number
    >>> register(Handle, lambda handle: (Handle, (handle.number,)))
    >>> loads(*dumps(Handle(3))).number
    3
    """
    if not isinstance(kind, type):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"register: {kind!r} is not a class")
    if kind in _FIXED or issubclass(kind, type):
        raise TypeError(f"register: the pickler writes a {kind.__name__} itself, so a reducer would have no effect")
    if reduce is None:
        reducers.pop(kind, None)
    elif callable(reduce):
        reducers[kind] = reduce
    else:
        raise TypeError(f"register: {reduce!r} is not a function")
