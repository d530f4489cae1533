"""Meters and spans without monarch-telemetry."""

from __future__ import annotations

from contextvars import copy_context

from monarch._core.observe import tracing
from monarch.actor import get_meter, span, traced


def test_meter_needs_no_name():
    assert get_meter().name == "monarch"
    for meter in (get_meter(), get_meter("mine"), get_meter(name="mine")):
        meter.create_counter("steps", unit="1").add(1.5, {"rank": 0})
        meter.create_histogram("seconds", description="of a step").record(0.1)


def test_functions_stay_what_they_are():
    def double(x: int) -> int:
        return 2 * x

    assert traced(double) is double and traced(name="other")(double) is double
    with span("step", rank=1):
        assert double(2) == 4


def test_span_that_another_task_leaves():
    """A generator's span is such a case: one task begins it, and the event loop closes it."""
    begun = tracing._RecordedSpan("work", {})
    copy_context().run(begun.__enter__)
    begun.__exit__(None, None, None)
    with tracing._RecordedSpan("next", {}):
        pass
