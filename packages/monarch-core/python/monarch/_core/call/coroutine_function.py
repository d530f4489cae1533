"""Functions whose calls give awaitables or generators."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_CO_COROUTINE = 0x80
# Of generators, and of async generators.
_CO_GENERATORS = 0x20 | 0x200


def is_coroutine_function(function: Any) -> bool:
    """Whether calling it gives an awaitable; cheap for plain functions."""
    code = getattr(function, "__code__", None)
    if code is not None and not hasattr(function, "_is_coroutine"):
        return bool(code.co_flags & _CO_COROUTINE)
    import functools
    import inspect
    from asyncio import coroutines

    while isinstance(function, functools.partial):
        function = function.func
    # A mark that `types.coroutine` does not set and mocks have. Python 3.14 deprecates `asyncio.iscoroutinefunction`, which reads it.
    marker = getattr(coroutines, "_is_coroutine", None)
    for candidate in (function, getattr(function, "__call__", None)):  # noqa: B004
        if inspect.iscoroutinefunction(candidate) or (marker is not None and getattr(candidate, "_is_coroutine", None) is marker):
            return True
    return False


def is_generator_function(function: Any) -> bool:
    """Whether its body has a `yield`, so that a call does not run it."""
    code = getattr(function, "__code__", None)
    return code is not None and bool(code.co_flags & _CO_GENERATORS)
