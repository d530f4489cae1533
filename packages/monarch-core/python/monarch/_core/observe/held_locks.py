"""The locks for which threads wait, and the threads that hold them, as far as frames show both.

Python does not record which thread holds a `threading.Lock`. A thread that waits stands in an expression such as `with self.lock:` or
`self.lock.acquire()`; the thread that holds it mostly stands in a block of such a `with`. The expressions are read from the source files.
Only names and attributes are evaluated, without calling any code: a lock that is reached in another way is left out.
"""

from __future__ import annotations

import ast
import linecache
import threading
from _thread import LockType, RLock, allocate_lock
from functools import lru_cache
from itertools import islice

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

_LOCKS = (LockType, RLock, type(allocate_lock()))
_TAKEN_BY = ("acquire", "__enter__")
# A line that takes a lock has one of these words.
_WORDS = ("with", "lock", *_TAKEN_BY)
# The largest source file that is read, in bytes.
_MOST_SOURCE = 1 << 20
_NOTHING = object()


class Locks:
    """The locks of some threads: the frames of each, by its number, with those of its tasks; the innermost frame of the thread first."""

    def __init__(self, stacks: dict[int, list[FrameType]]) -> None:
        self._stacks = stacks

    def wait(self, ident: int, frames: list[FrameType]) -> dict[str, Any] | None:
        """The lock for which this thread waits, as the caller of `waits` gets it; None for a thread that waits for no lock."""
        lock = _wanted(frames[0]) if frames else None
        if lock is None:
            return None
        holder, place = self._holder(lock, ident)
        return {"lock": f"{id(lock):x}", "holder": holder, "held_at": place}

    def _holder(self, lock: Any, waiter: int) -> tuple[int | None, tuple[str, int, str] | None]:
        owner = _owner(lock)
        for ident, frames in self._stacks.items():
            if owner is not None and ident != owner:
                continue
            for depth, frame in enumerate(frames):
                # The waiting expression itself is within the statement that would take the lock.
                if (ident, depth) != (waiter, 0) and any(_lock_of(_value(node, frame)) is lock for node in _held_by(frame)):
                    return ident, (frame.f_code.co_filename, frame.f_lineno or 0, frame.f_code.co_qualname)
        return owner, None


def _is_held(lock: Any) -> bool:
    locked = getattr(lock, "locked", None)
    # `RLock.locked` is new in Python 3.14.
    return bool(locked()) if locked is not None else repr(lock).startswith("<locked")


def _lock_of(value: Any) -> Any:
    """The lock of a condition; other objects are their own."""
    return vars(value).get("_lock") if isinstance(value, threading.Condition) else value


def _owner(lock: Any) -> int | None:
    """The thread that holds a reentrant lock."""
    if not isinstance(lock, RLock):
        return None
    number = repr(lock).partition("owner=")[2].partition(" ")[0]
    return int(number) if number.isdigit() and number != "0" else None


def _wanted(frame: FrameType) -> Any:
    """The lock that the current expression of a frame takes; None for another expression."""
    code = frame.f_code
    # The library takes locks for its callers, and waits by locks that no thread holds.
    if code.co_filename == threading.__file__ and code.co_name not in _TAKEN_BY:
        return None
    line, _, column, _ = next(islice(code.co_positions(), frame.f_lasti // 2, None), (None, None, None, None))
    # Most threads wait for something else: their files are not parsed.
    if line is None or not any(word in linecache.getline(code.co_filename, line).lower() for word in _WORDS):
        return None
    tree = _tree(code.co_filename)
    if tree is None:
        return None
    for node in tree.get(line, ()):
        wanted: list[ast.expr] = []
        if isinstance(node, ast.With):
            # Since Python 3.12 the place is that of the expression, before it is that of the statement, whose last held lock is meant.
            exact = [item.context_expr for item in node.items if item.context_expr.col_offset == column]
            wanted = exact or [item.context_expr for item in reversed(node.items) if node.col_offset == column]
        elif isinstance(node.func, ast.Attribute) and node.func.attr in _TAKEN_BY:
            wanted = [node.func.value]
        for one in wanted:
            lock = _value(one, frame)
            if isinstance(lock, _LOCKS) and _is_held(lock):
                return lock
    return None


def _held_by(frame: FrameType) -> list[ast.expr]:
    """The expressions of the `with` statements around the current line of a frame."""
    tree = _tree(frame.f_code.co_filename)
    line = frame.f_lineno
    if tree is None or not line:
        return []
    first = frame.f_code.co_firstlineno
    return [
        item.context_expr
        for nodes in tree.values()
        for node in nodes
        if isinstance(node, ast.With) and first <= node.lineno and node.body[0].lineno <= line <= (node.end_lineno or node.lineno)
        for item in node.items
    ]


def _value(node: ast.expr, frame: FrameType) -> Any:
    """The object that a name with attributes stands for in a frame; no code runs for that."""
    if isinstance(node, ast.Name):
        found = frame.f_locals.get(node.id, _NOTHING)
        return frame.f_globals.get(node.id) if found is _NOTHING else found
    if isinstance(node, ast.Attribute):
        of = _value(node.value, frame)
        try:
            own = object.__getattribute__(of, "__dict__")
        except AttributeError:
            return None
        if node.attr in own:
            return own[node.attr]
        return next((vars(kind)[node.attr] for kind in type(of).__mro__ if node.attr in vars(kind)), None)
    return None


@lru_cache(maxsize=32)
def _tree(filename: str) -> dict[int, list[ast.With | ast.Call]] | None:
    """The statements `with` and the calls of a source file by their lines; None for a file without readable source."""
    lines = linecache.getlines(filename)
    if not lines or sum(map(len, lines)) > _MOST_SOURCE:
        return None
    try:
        tree = ast.parse("".join(lines))
    except (SyntaxError, ValueError, RecursionError):
        return None
    found: dict[int, list[ast.With | ast.Call]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.With | ast.Call):
            for line in range(node.lineno, node.lineno + 1 if isinstance(node, ast.With) else (node.end_lineno or node.lineno) + 1):
                found.setdefault(line, []).append(node)
    return found
