"""Table functions: `stacks()` and others, whose rows are there before the statement is planned.

Among tables a function has a key for each way in which it is called: `stacks()`, and `stacks('trainers')` for one mesh. A session gives
the rows of that key, and records which keys a statement has asked for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from monarch.telemetry.errors import QueryError

_CALL = re.compile(r"(\w+)\((?:'(.*)')?\)", re.DOTALL)
_WRONG = re.compile(r"table functions? take[^:]*: \w+\([^)]*\)")


def key(function: str, mesh: str | None = None) -> str:
    """The key of a call, which is SQL too."""
    return f"{function}()" if mesh is None else function + "('" + mesh.replace("'", "''") + "')"


def is_call(name: str) -> bool:
    """Whether this is the key of a call, and not the name of a table."""
    return name.endswith(")")


def parsed(call: str) -> tuple[str, str | None]:
    """The function, and the mesh or None. `QueryError` for another text."""
    found = _CALL.fullmatch(call)
    if found is None:
        raise QueryError(f"this is no call of a table function: {call!r}")
    return found[1], None if found[2] is None else found[2].replace("''", "'")


def mentioned(sql: str, tables: Mapping[str, Any]) -> dict[str, Any]:
    """The tables and calls whose name stands in the statement: no other one can be read by it."""
    words = set(re.findall(r"\w+", sql.lower()))
    return {name: value for name, value in tables.items() if name.partition("(")[0] in words}


def refused(error: BaseException) -> str | None:
    """What is wrong with the arguments of a table function, if that is what the library reports."""
    found = _WRONG.search(str(error))
    return found[0] if found else None


def wrong_arguments(function: str) -> ValueError:
    return ValueError(f"table functions take the name of a mesh as a text, or nothing: {function}(...)")


def table_function(function: str, rows: Mapping[str | None, Any], calls: list[str]) -> Any:
    """The library's function; `rows` has its table by the mesh, None for a call without one."""
    library: Any = import_module("datafusion")
    expression: Any = import_module("datafusion.expr").Expr

    def called(*arguments: Any) -> Any:
        try:
            values = [expression(argument).python_value().as_py() for argument in arguments]
        except TypeError:
            raise wrong_arguments(function) from None
        if len(values) > 1 or not all(value is None or isinstance(value, str) for value in values):
            raise wrong_arguments(function)
        mesh = values[0] if values else None
        calls.append(key(function, mesh))
        return rows.get(mesh, rows[None])

    make: Callable[..., Any] = library.udtf
    return make(called, function)


def by_function(tables: Mapping[str, tuple[Any, Sequence[Any]]]) -> dict[str, dict[str | None, tuple[Any, Sequence[Any]]]]:
    """The calls among tables: for each function, schema and rows by the mesh. A function without a call for all has no rows there."""
    found: dict[str, dict[str | None, tuple[Any, Sequence[Any]]]] = {}
    for name, value in tables.items():
        if is_call(name):
            function, mesh = parsed(name)
            found.setdefault(function, {})[mesh] = value
    for calls in found.values():
        calls.setdefault(None, (next(iter(calls.values()))[0], ()))
    return found
