"""Pickling of the classes of actors, which are sent repeatedly."""

from __future__ import annotations

from _pickle import PicklingError
from _pickle import dumps as _c_dumps

from monarch._core.pickle.pickling import dumps_in_band, loads
from monarch._core.pickle.reference import goes_by_value

# First byte of a class that is sent by value; a plain pickle starts with 0x80.
_VALUE_MARK = b"V"


def dumps_class(cls: type) -> bytes:
    """Pickles a class. The pickle of a class that is sent by value is cached until one of its parts changes."""
    if not goes_by_value(cls):
        try:
            return _c_dumps(cls, 5)
        except (PicklingError, AttributeError):  # a local class, or a class whose module has another object of its name
            pass
    from monarch._core.pickle.class_cache import payload

    return payload(cls, dumps_in_band)


def loads_class(data: bytes) -> type:
    """Unpickles a class. Equal payloads by value give the same object, without unpickling again."""
    if data[:1] != _VALUE_MARK:
        return loads(data)
    from monarch._core.pickle.class_cache import from_payload

    return from_payload(data, loads)
