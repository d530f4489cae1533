"""The trace of the running code: each call of a sampled trace carries it to the actors (docs/events.md)."""

from __future__ import annotations

from contextlib import contextmanager

from monarch._core._native import TraceContext, enter_trace, leave_trace
from monarch._core._native import trace_context as trace_context

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator


@contextmanager
def use_trace(context: TraceContext | None) -> Generator[None]:
    """The calls and events of the code inside, and of tasks that it starts, belong to this trace; with None, to none.

    The current span of OpenTelemetry has precedence, if that library is loaded and has one. A generator that is suspended inside belongs,
    when a later message of an actor resumes it, to the trace of that message.
    """
    if context is not None and not isinstance(context, TraceContext):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"context={context!r}: expected a TraceContext or None, not {type(context).__name__}")
    entry = enter_trace(context)
    try:
        yield
    finally:
        leave_trace(entry)
