"""Finds the object that could not be pickled or unpickled, after the failure, and names it in a note of the exception.

Pickling: from the message downwards, the first part that fails alone with the same type of error is entered, until none of its parts
fails. The parts of an object are those that its own `__reduce_ex__` gives, so attributes that a `__getstate__` leaves out are not blamed.
Unpickling: the slow unpickler reads the stream again and records the callable in which it fails.
"""

# This module works on objects of unknown types.
# pyright: basic

from __future__ import annotations

import io
import pickle
import time
from types import CellType, FunctionType
from typing import TYPE_CHECKING, Any

from monarch._core.pickle.state import trial

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

# Limits of the search, which must not cost much more than the failure itself.
_DEPTH = 30
_ATTEMPTS = 400
_SECONDS = 2.0
_REREAD = 1 << 22

_ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes, bytearray})


def blame_pickling(exc: BaseException, obj: Any, attempt: Callable[[Any], None]) -> None:
    """Adds a note like `in argument 0 -> .model -> ['lock']` to the error that pickling `obj` raised; `attempt` pickles a part."""
    try:
        path = _Search(type(exc), attempt).path(obj)
        if path:
            exc.add_note("in " + " -> ".join(path))
    except Exception:  # the original error matters more
        return


class _Search:
    def __init__(self, error: type[BaseException], attempt: Callable[[Any], None]) -> None:
        self.error = error
        self.attempt = attempt
        self.attempts = 0
        self.until = time.monotonic() + _SECONDS
        self.entered: set[int] = set()

    def path(self, obj: Any) -> list[str]:
        found: list[str] = []
        parts = _message_parts(obj)
        while len(found) < _DEPTH:
            culprit = next(((name, part) for name, part in parts if id(part) not in self.entered and self.fails(part)), None)
            if culprit is None:
                break
            name, part = culprit
            self.entered.add(id(part))
            found.append(name)
            parts = _parts(part)
        return found

    def fails(self, part: Any) -> bool:
        if type(part) in _ATOMS:
            return False
        self.attempts += 1
        if self.attempts > _ATTEMPTS or time.monotonic() > self.until:
            return False
        try:
            self.attempt(part)
        except Exception as exc:
            return type(exc) is self.error
        return False


def _message_parts(obj: Any) -> Iterator[tuple[str, Any]]:
    if type(obj) is tuple and len(obj) == 2 and type(obj[0]) is tuple and type(obj[1]) is dict:
        for index, value in enumerate(obj[0]):
            yield f"argument {index}", value
        for name, value in obj[1].items():
            yield f"argument {name!r}", value
    else:
        yield f"{type(obj).__name__} object", obj


def _parts(obj: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(obj, dict):
        for key, value in list(obj.items()):
            yield f"[{_short(key)}]", value
            yield f"key {_short(key)}", key
    elif isinstance(obj, list | tuple):
        for index, value in enumerate(list(obj)):
            yield f"[{index}]", value
    elif isinstance(obj, set | frozenset):
        for value in list(obj):
            yield f"element {_short(value)}", value
    if isinstance(obj, FunctionType):
        yield from _function_parts(obj)
    elif isinstance(obj, type):
        for name, value in list(vars(obj).items()):
            if name not in ("__dict__", "__weakref__"):
                yield f".{name}", getattr(value, "__func__", value)
    elif type(obj) not in (dict, list, tuple, set, frozenset):
        yield from _object_parts(obj)


def _function_parts(function: FunctionType) -> Iterator[tuple[str, Any]]:
    from monarch._core.pickle.fingerprint import global_names

    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        if isinstance(cell, CellType):
            try:
                yield f"closure variable {name}", cell.cell_contents
            except ValueError:  # the cell is empty
                continue
    for name in global_names(function.__code__):
        if name in function.__globals__:
            yield f"global {name}", function.__globals__[name]
    for index, value in enumerate(function.__defaults__ or ()):
        yield f"default {index}", value
    for name, value in (function.__kwdefaults__ or {}).items():
        yield f"default {name}", value
    for name, value in function.__dict__.items():
        yield f".{name}", value


def _object_parts(obj: Any) -> Iterator[tuple[str, Any]]:
    bound = getattr(obj, "__self__", None)
    if bound is not None and not isinstance(bound, type):
        yield ".__self__", bound
    try:
        reduced = obj.__reduce_ex__(5)
    except Exception:  # this part is the culprit
        return
    if type(reduced) is not tuple:
        return
    _, args, state, items, pairs = (*reduced, None, None, None)[:5]
    for part in state if type(state) is tuple and len(state) == 2 else (state,):
        if isinstance(part, dict):
            for name, value in part.items():
                yield (f".{name}" if isinstance(name, str) else f"state[{_short(name)}]"), value
        elif part is not None:
            yield "its state", part
    for index, value in enumerate(args if isinstance(args, tuple) else ()):
        yield f"its value {index}", value
    for index, value in enumerate(items or ()):
        yield f"[{index}]", value
    for key, value in pairs or ():
        yield f"[{_short(key)}]", value


def _short(key: Any) -> str:
    try:
        text = repr(key)
    except Exception:
        return f"<{type(key).__name__}>"
    return text if len(text) <= 60 else text[:57] + "..."


# For a class or function that is sent by reference, and whose module the receiver lacks.
MISSING = "hint: '{module}' is not on this machine: `sync_workspace`, or a mount (`remote_mount` of a job), brings it to the hosts"


def blame_unpickling(exc: BaseException, data: bytes | memoryview, buffers: Sequence[Any]) -> None:
    """Adds a note like `while unpickling train.Model` to the error, if the failure can be reproduced."""
    if len(data) > _REREAD or isinstance(exc, RecursionError | MemoryError):
        return
    reader = _Reader(io.BytesIO(data), buffers=buffers)
    try:
        with trial():
            reader.load()
    except Exception as again:
        if type(again) is type(exc) and reader.current:
            exc.add_note(f"while unpickling {reader.current}")


class _Reader(pickle._Unpickler):  # pyright: ignore
    """The unpickler in Python, which records its current callable."""

    current = ""
    dispatch: dict[int, Callable[[Any], None]] = dict(pickle._Unpickler.dispatch)  # pyright: ignore

    def find_class(self, module: str, name: str) -> Any:
        before, self.current = self.current, f"{module}.{name}"
        found: Any = super().find_class(module, name)
        self.current = before
        return found

    def call(self, step: Callable[[Any], None], depth: int) -> None:
        before = self.current
        stack: list[Any] = self.stack  # pyright: ignore
        subject = stack[-depth] if len(stack) >= depth else None
        if getattr(subject, "__module__", None) == "copyreg" and depth == 2 and type(stack[-1]) is tuple and stack[-1]:
            subject = stack[-1][0]
        self.current = _label(subject)
        step(self)
        self.current = before


def _label(subject: Any) -> str:
    kind: Any = subject if callable(subject) and hasattr(subject, "__qualname__") else type(subject)
    return f"{kind.__module__}.{kind.__qualname__}"


def _watched(step: Callable[[Any], None], depth: int) -> Callable[[Any], None]:
    return lambda reader: reader.call(step, depth)


for _opcode, _subject in ((pickle.REDUCE, 2), (pickle.NEWOBJ, 2), (pickle.NEWOBJ_EX, 3), (pickle.BUILD, 2)):
    _Reader.dispatch[_opcode[0]] = _watched(_Reader.dispatch[_opcode[0]], _subject)
