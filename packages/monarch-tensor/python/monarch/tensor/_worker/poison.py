"""What stands in the table of a worker for a tensor that could not be computed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from monarch.tensor._protocol.failures import Failure


class Poison:
    """The failure that is the reason, on this rank or on another one."""

    __slots__ = ("failure",)

    def __init__(self, failure: Failure) -> None:
        self.failure = failure


class PoisonedElsewhere(Exception):
    """A rank took part in a collective without its data: the failure of that rank."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(str(failure.exception))
        self.failure = failure


def poison_of(value: Any) -> Poison | None:
    """It, if it is poison."""
    return value if type(value) is Poison else None


def poison_among(values: list[Any]) -> Poison | None:
    """The first of them that is poisoned."""
    for value in values:
        if type(value) is Poison:
            return value
    return None
