"""What `remote` takes beside functions and import paths: objects that functions of the program turn into import paths."""

from __future__ import annotations

from types import BuiltinFunctionType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

# Each resolver gets an object that is given to `remote`, and returns an import path, or None for an unknown object. They run in order, for
# everything but functions, methods and strings.
function_resolvers: list[Callable[[Any], str | None]] = []

_USUAL = (str, FunctionType, BuiltinFunctionType, MethodType)


def resolved(function: Any) -> Any:
    """The import path that the first resolver gives, or the object itself. `TypeError` for a resolver that returns something else."""
    if isinstance(function, _USUAL):
        return function
    for resolver in function_resolvers:
        path: Any = resolver(function)
        if path is None:
            continue
        if not isinstance(path, str):
            raise TypeError(f"the resolver {resolver!r} returned {path!r} for {function!r}: expected an import path or None")
        return path
    return function
