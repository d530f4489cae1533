"""Spans and meters. Without monarch-telemetry they keep nothing and cost next to nothing."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, NoReturn, TypeVar

    F = TypeVar("F", bound=Callable[..., Any])


class _Span:
    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


_NOTHING = _Span()


def span(name: str, **attributes: object) -> _Span:
    """A context manager that marks a stretch of work."""
    return _NOTHING


def traced(function: Any = None, /, *, name: str | None = None) -> Any:
    """Marks each call of a function, sync or async; bare or with a name."""
    return function if function is not None else _unchanged


def _unchanged(function: Any) -> Any:
    return function


class _Instrument:
    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def add(self, amount: float, attributes: Mapping[str, object] | None = None, context: Any = None) -> None:
        """Counts."""

    record = add
    set = add


class _Meter:
    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def create_counter(self, name: str, unit: str = "", description: str = "") -> _Instrument:
        return _Instrument(name)

    create_up_down_counter = create_counter
    create_histogram = create_counter
    create_gauge = create_counter

    def _observable(self, *_: Any, **__: Any) -> NoReturn:
        from monarch._core.config.wheel import missing_wheel

        raise missing_wheel("an observable instrument", "monarch-telemetry")

    create_observable_counter = _observable
    create_observable_up_down_counter = _observable
    create_observable_gauge = _observable


def get_meter(name: str = "monarch") -> _Meter:
    """Makes instruments that count and measure; `name` is the part of a program that they belong to."""
    return _Meter(name)
