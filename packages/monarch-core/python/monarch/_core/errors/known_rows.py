"""Rows of errors that other wheels declare, in the entry-point group `monarch.errors`.

An entry point refers to a sequence of `ErrorRow`. The rows are loaded with the first error whose code core does not have. A wheel whose
rows are broken is left out: its errors then have no hint.
"""

from __future__ import annotations

from monarch._core.config.wheel_declarations import Declarations
from monarch._core.errors.table import ROWS, ErrorRow

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from monarch._core.config.entry_points import LoadedEntry

GROUP = "monarch.errors"

_declared: dict[str, ErrorRow] = {}


def row_of(code: str) -> ErrorRow | None:
    """The row of a code, of core or of another wheel."""
    return ROWS.get(code) or declare().get(code)


def error_text(code: str, **fields: object) -> str:
    """The text of an error: the template of its row with these fields, and the hint as its last line.

    `KeyError` for a code that no wheel declares, and for a field of the template that is not given.

    >>> from monarch.extension import error_text
    >>> print(error_text("request_unhandled", name="rows", proc="<4>", why="no wheel declares it"))
    request rows to <4> has no handler: no wheel declares it
      hint: install the wheel that has the handler on every host, in the environment that the procs run in
    """
    row = row_of(code)
    if row is None:
        raise KeyError(f"no wheel declares an error with the code {code!r} in the entry-point group {GROUP}")
    try:
        text = row.template.format(**fields)
    except KeyError as e:
        raise KeyError(f"error_text({code!r}): the template {row.template!r} has the field {e.args[0]!r}, which is not given") from None
    return text if row.hint is None else f"{text}\n  hint: {row.hint}"


def declare() -> dict[str, ErrorRow]:
    """The rows of other wheels, by code."""
    try:
        _others.load()
    except ImportError:  # the interpreter is shutting down
        pass
    return _declared


def _take(found: LoadedEntry) -> None:
    _declared.update(_checked(found))


def _checked(found: LoadedEntry) -> dict[str, ErrorRow]:
    rows: Sequence[ErrorRow] = found.value
    checked: dict[str, ErrorRow] = {}
    for row in rows:
        problem = problem_of(row)
        if problem is not None:
            raise TypeError(problem)
        if row.code in checked:
            raise ValueError(f"the code `{row.code}` is declared twice")
        if row.code in ROWS or row.code in _declared:
            raise ValueError(f"the code `{row.code}` belongs to {'monarch-core' if row.code in ROWS else 'another wheel'}")
        checked[row.code] = row
    return checked


def problem_of(row: object) -> str | None:
    """The problem of a row of another wheel; None for a row without one."""
    if not isinstance(row, ErrorRow):
        return f"{row!r} is not an ErrorRow"
    if not (isinstance(row.error, type) and any(_is_base(base) for base in row.error.__mro__)):
        return f"`{row.code}`: {row.error!r} is not a subclass of MonarchError"
    if not row.code.isidentifier() or not row.situation or not row.template:
        return f"`{row.code}`: expected a code of letters, digits and `_`, a situation and a template"
    try:
        from string import Formatter

        for _, field, _, _ in Formatter().parse(row.template):
            if field is not None and not field.isidentifier():
                return f"`{row.code}`: the field {field!r} of the template has no name"
    except ValueError as e:
        return f"`{row.code}`: the template {row.template!r} is malformed: {e}"
    return None


def _is_base(cls: type) -> bool:
    """Whether the class is `MonarchError`, whose module is above this one."""
    return cls.__name__ == "MonarchError" and cls.__module__ == "monarch.actor"


_others = Declarations(GROUP, _take)
