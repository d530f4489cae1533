"""Exceptions between processes: an exception that can be pickled is sent as it is; type, text and traceback are always sent.

The formatted traceback is made where the exception was raised, while its frames exist. Frames of this package are left out, so that it
starts at user code.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

HEADER = "Traceback of where the remote call failed (most recent call last):"
# In the paths of the frames of cloudpickle.
_PICKLER = "/cloudpickle/"
_PYTHON_HEADER = "Traceback (most recent call last):\n"

# Longer texts of exceptions lose their middle in reports: every owner up the tree gets a copy, and the console too.
TEXT_LIMIT = 16 << 10
TRACEBACK_LIMIT = 64 << 10

# Qualified type name, text, formatted traceback, pickled exception if it can be pickled.
Packed = tuple[str, str, str, bytes | None]


def type_name(kind: type[Any]) -> str:
    """Qualified name of a class in the form of tracebacks: without the module for builtins and `__main__`."""
    module, name = kind.__module__, kind.__qualname__
    return name if module in ("builtins", "__main__", "__mp_main__") else f"{module}.{name}"


def exception_text(exc: BaseException) -> str:
    """`str(exc)`, with a substitute if `__str__` raises."""
    try:
        text = str(exc)
    except BaseException:
        return "<exception str() failed>"
    return str.__str__(text)


def bounded(text: str, limit: int = TEXT_LIMIT) -> str:
    """The text, or its begin and end if it is longer than `limit` characters."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"


def describe(exc: BaseException) -> tuple[str, str, str]:
    """Qualified type name, text and formatted traceback."""
    return type_name(type(exc)), exception_text(exc), format_exception(exc)


def raised_text(exc: BaseException) -> str:
    """The exception as the cause of a failure: `{Type}: {message}`."""
    name, text = type_name(type(exc)), bounded(exception_text(exc))
    return f"{name}: {text}" if text else name


def format_exception(exc: BaseException, result_of: Any = None) -> str:
    """The traceback with causes, contexts and notes; an `ActorError` in it brings the traceback of its own origin.

    The result of the function `result_of` could not be pickled: the function is the first frame, though it has returned.
    """
    import traceback

    try:
        described = traceback.TracebackException.from_exception(exc)
        _cut(described, _package_folders(), set())
        if result_of is not None:
            described.stack[:0] = _definition(result_of)
        text = "".join(described.format()).rstrip("\n")
    except BaseException:  # an exception whose text raises must not hide itself
        text = f"{_PYTHON_HEADER}{type_name(type(exc))}: {exception_text(exc)}"
    text = bounded(text.replace(_PYTHON_HEADER, HEADER + "\n"), TRACEBACK_LIMIT)
    return text if text.startswith(HEADER) else f"{HEADER}\n{text}"


def _definition(function: Any) -> list[Any]:
    """The line that begins the definition of a function, as a frame; empty for callables without a source."""
    import linecache
    import traceback

    code = getattr(function, "__code__", None)
    if code is None:
        return []
    name, number = code.co_filename, code.co_firstlineno
    # The first line is that of the first decorator.
    while (line := linecache.getline(name, number).split()) and line[0] not in ("def", "async"):
        number += 1
    return [traceback.FrameSummary(name, number if line else code.co_firstlineno, code.co_name)]


def _package_folders() -> tuple[str, ...]:
    folders = {__file__.rpartition("/_core/")[0]}
    # The other wheels of the namespace may be in other folders.
    folders.update(getattr(sys.modules.get("monarch"), "__path__", ()))
    return tuple(folder + "/" for folder in folders if folder)


def _cut(described: Any, ours: tuple[str, ...], seen: set[int]) -> None:
    """Removes frames of this package, and of the pickler below it, from a `TracebackException` and all its chained exceptions."""
    pending = [described]
    while pending:
        part = pending.pop()
        if part is None or id(part) in seen:
            continue
        seen.add(id(part))
        if part.stack is not None:
            part.stack[:] = _others(part.stack, ours)
        pending += (part.__cause__, part.__context__, *(part.exceptions or ()))


def _others(frames: Iterable[Any], ours: tuple[str, ...]) -> Iterator[Any]:
    is_ours = False
    for frame in frames:
        is_ours = frame.filename.startswith(ours) or (is_ours and _PICKLER in frame.filename)
        if not is_ours:
            yield frame


def pack_exception(
    exc: BaseException,
    dumps: Callable[[BaseException], bytes] | None = None,
    loads: Callable[[bytes], Any] | None = None,
) -> Packed:
    """The exception as plain values, which can always be sent; the pickle is None if the exception does not survive a round trip."""
    return (*describe(exc), _pickled(exc, dumps, loads))


def pack_result_error(exc: BaseException, function: Any) -> Packed:
    """`pack_exception` for the error of pickling a result of `function`."""
    kind, text, _, data = pack_exception(exc)
    place = next((note for note in getattr(exc, "__notes__", ()) if note.startswith("in ")), "")
    text = f"the result cannot be pickled{', ' if place else ''}{place}: {text}"
    return kind, text, format_exception(exc, function), data


def _pickled(exc: BaseException, dumps: Callable[[BaseException], bytes] | None, loads: Callable[[bytes], Any] | None) -> bytes | None:
    from monarch._core.pickle import pickling
    from monarch._core.pickle.state import trial

    try:
        data = (dumps or pickling.dumps_in_band)(exc)
        with trial():
            back = (loads or pickling.loads)(data)
    except BaseException:  # user code runs in here: whatever it raises, the caller must receive the error
        return None
    return data if type(back) is type(exc) else None


def unpack_exception(packed: Packed, loads: Callable[[bytes], Any] | None = None) -> BaseException:
    """The exception itself, or an `Exception` with the same text."""
    from monarch._core.pickle import pickling

    _, text, _, data = packed
    if data is not None:
        try:
            back = (loads or pickling.loads)(data)
        except BaseException:  # the class may not be importable here
            back = None
        if isinstance(back, BaseException):
            return back
    return Exception(text)
