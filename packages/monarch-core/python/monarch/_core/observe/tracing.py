"""Spans, meters and events of users: events of the process while events are recorded (docs/events.md). Otherwise they cost little."""

from __future__ import annotations

from monarch._core._native.events import is_on, metric_update, now, span_enter, span_exit, user_event

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextvars import ContextVar
    from typing import Any, NoReturn, TypeVar

    F = TypeVar("F", bound=Callable[..., Any])


class _Span:
    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


_NOTHING = _Span()
# Bytes for a text in a record (`rust/events/src/text.rs`), and for one field if all are longer; an escaped character has 12 at most.
_LONGEST, _SHORT = 4096, 1200


class _RecordedSpan(_Span):
    __slots__ = ("_attributes", "_began", "_name", "_number", "_token")

    def __init__(self, name: str, attributes: dict[str, object]) -> None:
        self._name = name
        self._attributes = attributes

    def __enter__(self) -> None:
        current, numbers = _spans()
        self._number = next(numbers)
        span_enter(self._number, current.get(), self._name, _json(self._attributes))
        self._token = current.set(self._number)
        self._began = now()

    def __exit__(self, *raised: object) -> None:
        ended = now()
        # A span whose recording was turned off meanwhile has no duration.
        span_exit(self._number, self._name, max(0, ended - self._began), raised[0] is not None)
        # A generator that another task closes has entered nothing in that task.
        try:
            _spans()[0].reset(self._token)
        except ValueError:
            return


_made: tuple[ContextVar[int], Iterator[int]] | None = None


def _spans() -> tuple[ContextVar[int], Iterator[int]]:
    """The current span, and the numbers of spans."""
    global _made
    if _made is None:
        from contextvars import ContextVar
        from itertools import count

        _made = ContextVar("monarch_span", default=0), count(1)
    return _made


def _json(fields: Mapping[str, object]) -> str:
    if not fields:
        return ""
    import json

    try:
        try:
            text = json.dumps(fields, default=str, allow_nan=False)
        except ValueError:  # JSON has neither NaN and infinities nor cycles
            text = json.dumps(_finite(fields), default=str)
    except Exception:  # keys, cycles or classes without a JSON form or a text: an event must not make the program fail
        text = json.dumps({_shown(name): _shown(value) for name, value in fields.items()})
    return text if len(text) <= _LONGEST else _shortened(fields)


def _finite(value: Any) -> Any:
    """The value with a text in place of each number that JSON does not have."""
    if isinstance(value, float):
        # A finite float is its own JSON number.
        return value if value - value == 0.0 else str(value)
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}  # pyright: ignore[reportUnknownVariableType]
    return [_finite(one) for one in value] if isinstance(value, list | tuple) else value  # pyright: ignore[reportUnknownVariableType]


def _shortened(fields: Mapping[str, object]) -> str:
    """The fields as JSON that fits into a record: a truncated text would be invalid. Long values are shortened, and the last fields left
    out.
    """
    import json

    pieces: list[str] = []
    left = _LONGEST - len('{"...": true}')
    for name, value in fields.items():
        piece = _json({name: value})[1:-1] if isinstance(value, int | float | bool | None) else ""
        if not piece or len(piece) > _SHORT:
            piece = f"{json.dumps(_shown(name)[: _SHORT // 12])}: {json.dumps(_shown(value)[: _SHORT // 12])}"
        if len(piece) + 2 > left:
            break
        pieces.append(piece)
        left -= len(piece) + 2
    return "{" + ", ".join([*pieces, '"...": true']) + "}"


def _shown(value: object) -> str:
    try:
        return str(value)[:1000]
    except Exception:
        return f"<{type(value).__name__}>"


def span(name: str, **attributes: object) -> _Span:
    """A context manager that marks a section of work: events `span.enter` and `span.exit`, if events are recorded."""
    if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise _no_name(name)
    return _RecordedSpan(name, attributes) if is_on() else _NOTHING


def emit(name: str, **fields: object) -> None:
    """Emits an event of the program, with JSON fields; other values as text. Nothing happens while no events are recorded."""
    # The name is also checked while nothing is recorded: else an observer would make a program fail.
    if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise _no_name(name)
    if is_on():
        user_event(name, _json(fields))


def _no_name(name: object) -> TypeError:
    return TypeError(f"name={name!r}: expected a str, not {type(name).__name__}")


def traced(function: Any = None, /, *, name: str | None = None) -> Any:
    """Marks each call of a function, sync or async; used with or without a name."""
    return function if function is not None else _unchanged


def _unchanged(function: Any) -> Any:
    return function


class _Instrument:
    __slots__ = ("_kind", "_meter", "name")

    def __init__(self, meter: str, name: str, kind: str, unit: str) -> None:
        self.name = name
        self._meter = meter
        # The form in the record: name and kind are the same for all updates, and stored once.
        self._kind = f"{kind} {unit}" if unit else kind

    def add(self, amount: float, attributes: Mapping[str, object] | None = None, context: Any = None) -> None:
        """Counts or measures: an event `metric.update`, if events are recorded."""
        if is_on():
            metric_update(self._meter, self.name, self._kind, amount, _json(attributes or {}))

    record = add
    set = add


class _Meter:
    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def create_counter(self, name: str, unit: str = "", description: str = "") -> _Instrument:
        return _Instrument(self.name, name, "counter", unit)

    def create_up_down_counter(self, name: str, unit: str = "", description: str = "") -> _Instrument:
        return _Instrument(self.name, name, "up_down_counter", unit)

    def create_histogram(self, name: str, unit: str = "", description: str = "") -> _Instrument:
        return _Instrument(self.name, name, "histogram", unit)

    def create_gauge(self, name: str, unit: str = "", description: str = "") -> _Instrument:
        return _Instrument(self.name, name, "gauge", unit)

    def _observable(self, *_: Any, **__: Any) -> NoReturn:
        from monarch._core.config.wheel import missing_wheel

        raise missing_wheel("an observable instrument", "monarch-telemetry")

    create_observable_counter = _observable
    create_observable_up_down_counter = _observable
    create_observable_gauge = _observable


def get_meter(name: str = "monarch") -> _Meter:
    """A factory of instruments that count and measure; `name` is the part of the program that they belong to."""
    return _Meter(name)
