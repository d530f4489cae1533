"""Classes and functions that are sent by value: cloudpickle, with their source text and a cache of known classes.

Source: the first function of a message that comes from a file or cell brings that text, compressed; later ones refer to it. The
receiver enters it in `linecache` unless it has the same text itself, so that tracebacks and pdb show the lines.

Classes: cloudpickle recognises a class that returns, but writes the state of the copy over it, which would tie its methods to new
globals. Here the process that defined a class never takes state from outside, and any other process skips state of the same version.
"""

# Cloudpickle has no types.
# pyright: basic

from __future__ import annotations

import functools
import linecache
import sys
import threading
import zlib
from typing import TYPE_CHECKING, Any

import cloudpickle

from monarch._core.pickle.reducers import apply_reducer, reducers
from monarch._core.pickle.reference import goes_by_value, is_in_main
from monarch._core.pickle.state import in_trial

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType
    from weakref import ref

# The largest source text in bytes: the lines of a traceback are not worth the cost of a longer file.
_MAX_SOURCE = 1 << 20

Source = tuple[str, int, bytes]

# The packed sources by file name, with the lines they were made of.
_packed: dict[str, tuple[list[str], Source | None]] = {}
# Checksums of the entered sources, by file name.
_entered: dict[str, int] = {}
# Held while a class gets its state.
_states = threading.RLock()
# Classes by id: a weak reference that validates the entry, whether the class is defined here, and the version of its state.
_known: dict[int, tuple[ref[type], bool, bytes | None]] = {}

_FUNCTION = type(lambda: None)
_CODE = type((lambda: None).__code__)
_CACHED = type(functools.lru_cache(lambda: None))
_MAKE_CLASS = getattr(cloudpickle.cloudpickle, "_make_skeleton_class", None)


class ByValuePickler(cloudpickle.Pickler):
    """Cloudpickle with source, versions of classes, cached functions and, if torch is loaded, tensors."""

    tensor: Callable[[Any], Any] | None = None

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        function = kind is _FUNCTION
        if function or issubclass(kind, type):
            reduced: Any = super().reducer_override(obj)
            if reduced is NotImplemented and goes_by_value(obj) and _register(obj.__module__):
                reduced = super().reducer_override(obj)
            if type(reduced) is not tuple or len(reduced) != 6:
                return reduced
            make, args, state, _, _, setter = reduced
            if function:
                return (_make_function, (_source(obj.__code__), make, args), state, None, None, setter)
            if make is _MAKE_CLASS:
                args = _with_slots(obj, args)
            return (make, args, (_version(obj), setter, state), None, None, _set_class_state)
        if kind is _CODE:
            return _reduced_code(obj)
        if kind is _CACHED and goes_by_value(obj):
            return (_make_cached, (obj.__wrapped__, obj.cache_parameters()))
        if kind is functools.cached_property:
            # Python 3.11 keeps a lock in the object.
            return (_make_cached_property, (obj.func, obj.attrname))
        if kind in reducers:
            return apply_reducer(obj)
        if self.tensor is not None:
            return self.tensor(obj)
        return NotImplemented


class SameProgramByValuePickler(ByValuePickler):
    """Pickles the classes and functions of `__main__` by name, and others by value."""

    def reducer_override(self, obj: Any) -> Any:
        return NotImplemented if is_in_main(obj) else super().reducer_override(obj)


def _register(name: Any) -> bool:
    """Registers a module with cloudpickle that only Monarch identifies as a notebook, or as the `__main__` of another process."""
    module = sys.modules.get(name)
    if module is None or name == "__main__":
        return False
    cloudpickle.register_pickle_by_value(module)
    return True


def _with_slots(cls: type, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments that make the class with its slots. Cloudpickle makes it without: its instances then do not fit the original class."""
    slots: Any = vars(cls).get("__slots__")
    if not slots or not isinstance(slots, (str, tuple, list, dict)):
        return args  # `NamedTuple` refuses empty slots, which it makes itself
    if "__dict__" in vars(cls) and "__dict__" not in slots:
        return args  # the attribute was set after the class was made
    constructor, name, bases, attributes, *rest = args
    return (constructor, name, bases, {"__slots__": slots, **attributes}, *rest)


def _make_cached(function: Any, parameters: dict[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)


def _make_cached_property(function: Any, name: str | None) -> Any:
    made = functools.cached_property(function)
    made.attrname = name
    return made


# Source -----------------------------------------------------------------------------------------------------------------------


def _source(code: CodeType) -> Source | None:
    """File name, checksum and compressed text of the file or cell of a code object, the same object every time."""
    name = code.co_filename
    lines = linecache.getlines(name)
    known = _packed.get(name)
    if known is not None and known[0] is lines:
        return known[1]
    text = "".join(lines).encode("utf-8", "surrogatepass")
    source = (name, zlib.crc32(text), zlib.compress(text, 1)) if 0 < len(text) <= _MAX_SOURCE else None
    if lines:
        _packed[name] = (lines, source)
    return source


def _reduced_code(code: CodeType) -> Any:
    """The reduction of cloudpickle with the original file name: its release 3.1.3 changes the name by which sources are found."""
    reduced = cloudpickle.Pickler.dispatch_table[_CODE](code)
    make, args = reduced[:2]
    return reduced if code.co_filename in args else (_make_code, (code.co_filename, make, args), *reduced[2:])


def _make_code(name: str, make: Callable[..., CodeType], args: tuple[Any, ...]) -> CodeType:
    return make(*args).replace(co_filename=name)


def _make_function(source: Source | None, make: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    if source is not None:
        _enter(*source)
    return make(*args)


def _enter(name: str, checksum: int, packed: bytes) -> None:
    if _entered.get(name) == checksum and name in linecache.cache:
        return
    lines = zlib.decompress(packed).decode("utf-8", "surrogatepass").splitlines(keepends=True)
    if linecache.getlines(name) != lines:
        # Without a modification time `checkcache` keeps the entry.
        linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
    _entered[name] = checksum


# Classes ----------------------------------------------------------------------------------------------------------------------


def _version(cls: type) -> bytes | None:
    from monarch._core.pickle.class_cache import version

    entry = _lookup(cls)
    if entry is None:
        _remember(cls, True, None)
    return version(cls)


def _set_class_state(cls: type, payload: tuple[bytes | None, Callable[..., Any], Any]) -> type:
    version, setter, state = payload
    # Another thread that unpickles the class gets the same object, and must not use it before it has its state.
    with _states:
        entry = _lookup(cls)
        if entry is not None:
            _, native, known = entry
            if native or in_trial() or (version is not None and known == version):
                return cls
        _remember(cls, False, version)
        return setter(cls, state) or cls


def _lookup(cls: type) -> tuple[ref[type], bool, bytes | None] | None:
    entry = _known.get(id(cls))
    return entry if entry is not None and entry[0]() is cls else None


def _remember(cls: type, native: bool, version: bytes | None) -> None:
    from weakref import ref

    key = id(cls)

    def forget(dead: ref[type]) -> None:
        entry = _known.get(key)
        if entry is not None and entry[0] is dead:
            del _known[key]

    _known[key] = (ref(cls, forget), native, version)
