"""A message of several pickles: one of what all receivers get, and one of each argument that has other values for other receivers.

Each pickle is made once, and the messages of all receivers share its bytes. The first part of a message is the *envelope*, a short pickle
that calls `join` with the other parts: those of the arguments, then those of the rest. Messages whose pickles have the same numbers of
parts have the same envelope.
"""

from __future__ import annotations

from _pickle import PickleBuffer
from _pickle import dumps as _c_dumps
from typing import TYPE_CHECKING, Any

from monarch._core.pickle.pickling import loads

if TYPE_CHECKING:
    from collections.abc import Sequence


class _Envelope:
    """Pickles as a call of `join` whose buffers are the next parts of the message."""

    def __init__(self, names: tuple[int | str, ...], counts: tuple[int, ...]) -> None:
        self.names = names
        self.counts = counts

    def __reduce__(self) -> tuple[Any, ...]:
        # Writable memory: the pickle of read-only memory would make each buffer read-only.
        parts = [PickleBuffer(bytearray()) for _ in range(sum(self.counts))]
        return join, (self.names, self.counts, *parts)


def envelope(names: tuple[int | str, ...], counts: tuple[int, ...]) -> bytes:
    """The first part of a message.

    Args:
        names: the place, or the keyword, of each argument with a pickle of its own.
        counts: the number of parts of each of these pickles, and of the pickle of the rest.
    """
    return _c_dumps(_Envelope(names, counts), 5, buffer_callback=lambda _: False)


def join(names: Sequence[int | str], counts: Sequence[int], *parts: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a message, from its parts."""
    at = 0
    found: list[Any] = []
    for count in counts:
        found.append(loads(parts[at], parts[at + 1 : at + count]))
        at += count
    given, kwargs = found.pop()
    args = list(given)
    for name, value in zip(names, found, strict=True):
        if type(name) is int:
            args[name] = value
        else:
            kwargs[name] = value
    return tuple(args), kwargs
