"""Pickling of the classes of actors, which are sent again and again."""

from __future__ import annotations

from _pickle import PicklingError
from _pickle import dumps as _c_dumps

from monarch._core.pickle.pickling import dumps_in_band, loads
from monarch._core.pickle.reference import goes_by_value

# First byte of a class that goes by value; a plain pickle starts with 0x80.
_VALUE_MARK = b"V"


def dumps_class(cls: type) -> bytes:
    """Pickles a class, remembering what went by value for as long as nothing it is made of has changed."""
    if not goes_by_value(cls):
        try:
            return _c_dumps(cls, 5)
        except (PicklingError, AttributeError):  # local, or not what its module has under this name
            pass
    from monarch._core.pickle.class_cache import payload

    return payload(cls, dumps_in_band)


def loads_class(data: bytes) -> type:
    """Gives the class back; equal payloads that went by value give the same object, without unpickling."""
    if data[:1] != _VALUE_MARK:
        return loads(data)
    from monarch._core.pickle.class_cache import from_payload

    return from_payload(data, loads)
