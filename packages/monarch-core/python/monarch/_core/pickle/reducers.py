"""Reducers that programs register for types of their own: `register`. They hold for messages of this process, not for other pickles.

What always holds: a reducer has precedence over the type's own `__reduce__` and over the reduction of tensors; a type without one costs
one lookup in an empty table.
"""

from __future__ import annotations

from _pickle import PicklingError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# The reducer of each type. Read by the picklers for each object, written under the GIL.
reducers: dict[type[Any], Callable[[Any], Any]] = {}

# The C pickler never asks how objects of these types are reduced; functions go by name or by value.
_FIXED = (bool, bytearray, bytes, complex, dict, float, frozenset, int, list, set, str, tuple, type(None), type(lambda: None))


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


def apply_reducer(obj: Any) -> Any:
    """What the registered reducer makes of an object; `PicklingError` names a reducer whose result pickle cannot take."""
    reduce = reducers[type(obj)]
    found = reduce(obj)
    wrong = _wrong(found)
    if wrong is None:
        return found
    kind: Any = type(obj)  # pyright: ignore[reportUnknownVariableType]
    name = getattr(reduce, "__qualname__", repr(reduce))
    raise PicklingError(f"the reducer {name} of {kind.__module__}.{kind.__qualname__} returned {wrong}; see register")


def _wrong(found: Any) -> str | None:
    """What is wrong with the result of a reducer; None for a text, for `NotImplemented`, and for a function with its arguments."""
    if isinstance(found, str) or found is NotImplemented:
        return None
    if not isinstance(found, tuple):
        return f"{type(found).__name__}, and no tuple"
    parts: Any = found  # pyright: ignore[reportUnknownVariableType]
    if not 2 <= len(parts) <= 6:
        return f"a tuple of {len(parts)}, and not of 2 to 6"
    if not callable(parts[0]):
        return f"a tuple that begins with {type(parts[0]).__name__}, and no function"
    return None if isinstance(parts[1], tuple) else f"{type(parts[1]).__name__} as arguments, and no tuple"
