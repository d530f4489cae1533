"""A cache of pickled and unpickled classes that are sent by value, so that spawning the same class again is cheap."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from monarch._core.pickle.fingerprint import Fingerprint
from monarch._core.pickle.reference import registered_by_value

if TYPE_CHECKING:
    from collections.abc import Callable

# Entries in each cache: a program has few actor classes, and a dropped class is pickled or unpickled again.
_KEPT = 128
_MARK = b"V"


class _Entry:
    """A class and its parts when its payload was pickled. The entry holds the class, so that its id stays unique."""

    __slots__ = ("cls", "data", "fingerprint", "registered", "version")

    def __init__(self, cls: type, fingerprint: Fingerprint) -> None:
        self.cls = cls
        self.fingerprint = fingerprint
        self.registered = frozenset(registered_by_value())
        self.version = os.urandom(8)
        self.data: bytes | None = None

    def unchanged(self) -> bool:
        return set(self.registered) == registered_by_value() and self.fingerprint.unchanged()


_entries: dict[int, _Entry] = {}
_classes: dict[bytes, type] = {}


def _entry(cls: type) -> _Entry | None:
    """The entry of the class in its present state; None if it depends on an object that may change unnoticed."""
    key = id(cls)
    found = _entries.pop(key, None)
    if found is None or not found.unchanged():
        try:
            found = _Entry(cls, Fingerprint(cls))
        except Exception:  # `Mutable`, or a class that refuses the inspection
            return None
        if len(_entries) >= _KEPT:
            _drop_oldest(_entries)
    _entries[key] = found
    return found


def version(cls: type) -> bytes | None:
    """A token that stays the same until a part of the class changes; None if changes cannot be noticed."""
    entry = _entry(cls)
    return None if entry is None else entry.version


def payload(cls: type, dumps: Callable[[Any], bytes]) -> bytes:
    """The pickle of a class that is sent by value, with its mark."""
    entry = _entry(cls)
    if entry is not None and entry.data is not None:
        return entry.data
    data = _MARK + dumps(cls)
    if entry is not None:
        entry.data = data
    return data


def from_payload(data: bytes, loads: Callable[[memoryview], Any]) -> type:
    """The class of a payload; equal payloads give the same object."""
    data = bytes(data)
    found = _classes.pop(data, None)
    if found is None:
        found = loads(memoryview(data)[1:])
        if len(_classes) >= _KEPT:
            _drop_oldest(_classes)
    _classes[data] = found
    return found


def forget() -> None:
    """Drops all classes, at the end of a process: objects in their globals, such as files with buffered lines, end then."""
    _entries.clear()
    _classes.clear()


def _drop_oldest(kept: dict[Any, Any]) -> None:
    # The loop needs a copy, which is made in one step: other threads add to the cache.
    kept.pop(next(iter(list(kept)), None), None)
