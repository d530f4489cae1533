"""The arguments of a job's constructor, checked by a model of pydantic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic_core import ErrorDetails

_Model = TypeVar("_Model", bound=BaseModel)
# The kinds of problems that are about a value; the others are about a type.
_VALUES = frozenset({"value_error", "greater_than", "greater_than_equal", "less_than_equal", "finite_number", "literal_error"})


def checked(model: type[_Model], arguments: Mapping[str, Any], title: str) -> _Model:
    """The arguments as a model; `TypeError` or `ValueError` name the one that is wrong."""
    try:
        return model.model_validate(arguments)
    except ValidationError as error:
        kind, name, what, first = problem_of(error)
        raise kind(f"{title}: {name}: {what}, not {first['input']!r}" if name else f"{title}: {what}") from None


def problem_of(error: ValidationError) -> tuple[type[TypeError | ValueError], str, str, ErrorDetails]:
    """The first problem: the error to raise, the name of the argument or an empty text, the problem in words, and what pydantic has."""
    first = error.errors()[0]
    kind = ValueError if first["type"] in _VALUES else TypeError
    return kind, ".".join(str(part) for part in first["loc"]), first["msg"].removeprefix("Value error, "), first
