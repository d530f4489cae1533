"""The message pickler: protocol 5, the C pickler where possible, cloudpickle for objects that must be sent by value.

Three tiers, cheapest first. Trees of plain builtins go straight through the C function. Everything else goes through a C pickler that
inspects each class and function; the first that the other side could not import sends the message to the third tier, which
is cloudpickle with the source text added (`by_value`). Buffers of `OUT_OF_BAND` bytes and more are sent out of band instead of being copied
into the stream. For `bytes` that pickle itself would copy, the pickler's memo is primed: the stream starts by taking these objects from
the buffers and refers to them from then on, at any depth, so that identities inside a message are kept.
"""

from __future__ import annotations

import sys
from _io import BytesIO
from _pickle import Pickler, PicklingError
from _pickle import dumps as _c_dumps
from _pickle import loads as _c_loads
from typing import TYPE_CHECKING, Any

from monarch._core._native import provide_pickling
from monarch._core.pickle.imports import MessageUnpickler, complete_module
from monarch._core.pickle.reducers import apply_reducer, reducers
from monarch._core.pickle.reference import goes_by_value, is_in_main
from monarch._core.pickle.state import NeedsReceivers, state

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pickle import PickleBuffer

# Bytes below which a copy in the stream is cheaper than an out-of-band part.
OUT_OF_BAND = 256
# Limits of the search for large `bytes`: levels of containers, and items on one level.
_LEVELS = 4
_ITEMS = 1024

_ATOMS = frozenset({type(None), bool, int, float, complex, str})
# Objects that pickle by the name of a module although they are neither classes nor functions.
_NAMED = frozenset({"_lru_cache_wrapper", "TypeVar"})
_FUNCTION = type(lambda: None)
# Streams without this byte name no module; the search for a number is eight times as fast as that for `bytes`.
_STACK_GLOBAL = 0x93
# NEXT_BUFFER MEMOIZE POP
_TAKE_BUFFER = b"\x97\x940"


class ByValue(Exception):
    """Internal: the message holds an object that cannot be sent by reference."""


def dumps(obj: Any) -> tuple[bytes, list[memoryview | bytes]]:
    """Pickles a message; the list has its out-of-band buffers in order: `bytes`, or contiguous views of one dimension of bytes.

    Views of writable memory are not copied here. Raises the exceptions of pickling, with a note that gives the path to the culprit.
    """
    kind: Any = type(obj)  # pyright: ignore[reportUnknownVariableType]
    if kind is tuple and len(obj) == 2:
        # Most messages: a few atoms and no keywords.
        args: Any = obj[0]
        # The type is checked first: the truth value of an array or a tensor raises, or waits for a device.
        if type(obj[1]) is dict and not obj[1] and type(args) is tuple:
            for item in args:  # pyright: ignore[reportUnknownVariableType]
                if type(item) not in _ATOMS:  # pyright: ignore[reportUnknownArgumentType]
                    break
            else:
                return _c_dumps(obj, 5), []
    large: list[bytes] = []
    if _survey(obj, large) and not large:
        return _c_dumps(obj, 5), []
    buffers: list[memoryview | bytes] = []
    return _encode(obj, large, buffers), buffers


def dumps_for_same_program(obj: Any) -> tuple[bytes, list[memoryview | bytes]]:
    """Like `dumps`, for a reader that runs the same program: classes and functions of `__main__` are sent by name.

    So `loads` gives values of the reader's own classes. They must exist there by then, or it raises `AttributeError`.
    """
    buffers: list[memoryview | bytes] = []
    large: list[bytes] = []
    _survey(obj, large)
    return _encode(obj, large, buffers, same_program=True), buffers


def dumps_in_band(obj: Any) -> bytes:
    """Pickles a message into one piece, without out-of-band buffers."""
    return _encode(obj, (), None)


def loads(data: bytes | memoryview, buffers: Sequence[Any] = ()) -> Any:
    """Unpickles a message; `buffers` are the out-of-band parts of `dumps`: `bytes` if read-only, else writable memory.

    Raises the exceptions of unpickling, with a note that names the object if it can be found.
    """
    if buffers:
        buffers = [bytes(part) if type(part) is memoryview and part.readonly else part for part in buffers]
    try:
        if type(data) is not bytes:
            data = bytes(data)
        # Each call unpickles twice, so the usual message makes no call of Python before the unpickler.
        if "torch" in sys.modules and complete_module("torch") is not None:
            with _tensors().modes_off():
                return _c_loads(data, buffers=buffers) if _STACK_GLOBAL not in data else _load_in_turn(data, buffers)
        return _c_loads(data, buffers=buffers) if _STACK_GLOBAL not in data else _load_in_turn(data, buffers)
    except Exception as exc:
        from monarch._core.pickle.blame import MISSING, blame_unpickling

        blame_unpickling(exc, data, buffers)
        if isinstance(exc, ModuleNotFoundError) and exc.name:
            exc.add_note(MISSING.format(module=exc.name))
        raise


def _load_in_turn(data: bytes, buffers: Sequence[Any]) -> Any:
    return MessageUnpickler(BytesIO(data), buffers=buffers).load()


def _survey(obj: Any, large: list[bytes]) -> bool:
    """Whether `obj` is a small tree of plain builtins; collects large `bytes` near the top."""
    plain = True
    level: Any = (obj,)
    for _ in range(_LEVELS):
        below: list[Any] = []
        for item in level:
            kind: Any = type(item)  # pyright: ignore[reportUnknownVariableType]
            if kind in _ATOMS:
                continue
            if kind is tuple or kind is list:
                if item:
                    below += item
            elif kind is dict:
                if item:
                    below += item
                    below += item.values()
            elif kind is bytes:
                if len(item) >= OUT_OF_BAND:
                    large.append(item)
            else:
                plain = False
        if not below:
            return plain
        if len(below) > _ITEMS:
            return False
        level = below
    return False


def is_small_and_plain(obj: Any) -> bool:
    """Whether `obj` is a small tree of plain builtins, which pickles without effects."""
    large: list[bytes] = []
    return _survey(obj, large) and not large


def _encode(obj: Any, large: Sequence[bytes], buffers: list[memoryview | bytes] | None, *, same_program: bool = False) -> bytes:
    before, state.message = state.message, True
    try:
        if "torch" in sys.modules and complete_module("torch") is not None:
            tensors = _tensors()
            with tensors.modes_off():
                return _attempt(obj, large, buffers, tensors.reduce, same_program)
        return _attempt(obj, large, buffers, None, same_program)
    except (RecursionError, MemoryError, NeedsReceivers):
        raise
    except Exception as exc:
        from monarch._core.pickle.blame import blame_pickling

        blame_pickling(exc, obj, attempt)
        raise
    finally:
        state.message = before


def _attempt(
    obj: Any,
    large: Sequence[bytes],
    buffers: list[memoryview | bytes] | None,
    tensor: Callable[[Any], Any] | None,
    same_program: bool = False,
) -> bytes:
    try:
        return _run(SameProgramPickler if same_program else MessagePickler, obj, large, buffers, tensor)
    except ByValue:
        pass
    except NeedsReceivers:
        raise
    except (PicklingError, AttributeError, TypeError):
        pass  # cloudpickle supports more types; an exception of a user's `__reduce__` is raised again there
    from monarch._core.pickle.by_value import ByValuePickler, SameProgramByValuePickler

    return _run(SameProgramByValuePickler if same_program else ByValuePickler, obj, large, buffers, tensor)


def attempt(obj: Any) -> None:
    """Pickles an object and discards the result, as a test: without a copy of large buffers and without a search for the culprit."""
    before, state.message = state.message, True
    try:
        tensor = _tensors().reduce if "torch" in sys.modules and complete_module("torch") is not None else None
        _attempt(obj, (), [], tensor)
    finally:
        state.message = before


def _run(
    kind: type[Any],
    obj: Any,
    large: Sequence[bytes],
    buffers: list[memoryview | bytes] | None,
    tensor: Callable[[Any], Any] | None,
) -> bytes:
    out = BytesIO()
    if buffers is None:
        pickler = kind(out, 5)
    else:
        buffers.clear()
        parts = buffers

        def apart(view: PickleBuffer) -> bool:
            try:
                raw = view.raw()
            except BufferError:  # the buffer is not contiguous
                return True
            if raw.nbytes < OUT_OF_BAND:
                return True
            parts.append(raw)
            return False

        pickler = kind(out, 5, buffer_callback=apart)
        if large:
            memo = {id(part): part for part in large}
            pickler.memo = {address: (index, part) for index, (address, part) in enumerate(memo.items())}
            parts.extend(memo.values())
            out.write(b"\x80\x05" + _TAKE_BUFFER * len(memo))
    pickler.tensor = tensor
    pickler.dump(obj)
    return out.getvalue()


class MessagePickler(Pickler):
    """The C pickler, stopped by the first class or function that must be sent by value."""

    tensor: Callable[[Any], Any] | None = None

    def reducer_override(self, obj: Any) -> Any:
        kind: Any = type(obj)  # pyright: ignore[reportUnknownVariableType]
        if kind is _FUNCTION or issubclass(kind, type):
            if goes_by_value(obj):
                raise ByValue
        elif kind.__name__ in _NAMED:
            if goes_by_value(obj):
                raise ByValue
        elif kind in reducers:
            return apply_reducer(obj)
        elif self.tensor is not None:
            return self.tensor(obj)
        return NotImplemented


class SameProgramPickler(MessagePickler):
    """Pickles the classes and functions of `__main__` by name."""

    def reducer_override(self, obj: Any) -> Any:
        return NotImplemented if is_in_main(obj) else super().reducer_override(obj)


def _tensors() -> Any:
    from monarch._core.pickle import tensor as tensor_pickling

    return tensor_pickling


provide_pickling(dumps, loads)
